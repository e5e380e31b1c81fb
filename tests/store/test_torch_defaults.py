"""What torch makes new tensors of, and where, is no matter of a store's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dynaquant_core.files import save_file
from dynaquant_core.quantize.blocks import level_table
from dynaquant_core.store import CheckpointStore
from tests.store.kit import is_same
from tests.store.small_run import Run


@pytest.mark.parametrize(
    "method", ["lattice", "dynaquant", "cnr", "qd", "gobo", "topn", "scar", "lc", "excp"]
)
@pytest.mark.parametrize("moments", ["8bit", "compact", "minimal", "sparse"])
def test_the_default_device_of_torch_does_not_matter(tmp_path: Path, method: str, moments: str) -> None:
    run = Run()
    run.train()
    whole = run.numbered()
    with torch.device("meta"):  # stands for any that is not the tensors' own
        store = CheckpointStore(tmp_path, method=method, moments=moments)
        store.save(1, whole)
        store.load()
        again = CheckpointStore(tmp_path)
        again.resume()
        again.save(2, whole)
        loaded = CheckpointStore(tmp_path).load()
    assert loaded["model"]["1.weight"].device.type == "cpu"


@pytest.mark.parametrize("method", ["lattice", "dynaquant", "cnr", "qd", "gobo", "lc", "excp"])
def test_weights_that_torch_only_marks_as_negative_keep_their_sign(tmp_path: Path, method: str) -> None:
    """Their memory holds the opposite, and that was what was coded."""
    weights = torch._neg_view(torch.randn(64, 64))
    CheckpointStore(tmp_path, method=method).save(1, {"model": {"weight": weights}})
    loaded = CheckpointStore(tmp_path).load()["model"]["weight"]
    assert (loaded - weights).norm() < 0.7 * weights.norm()


@pytest.fixture
def default_dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("default_dtype")
@pytest.mark.parametrize("moments", ["8bit", "compact", "minimal", "sparse", "second", "none"])
@pytest.mark.parametrize("method", ["lattice", "dynaquant"])
def test_the_default_dtype_of_torch_does_not_matter(tmp_path: Path, method: str, moments: str) -> None:
    run = Run()
    run.train()
    whole = run.numbered()
    CheckpointStore(tmp_path / "usual", method=method, moments=moments).save(1, whole)
    usual = CheckpointStore(tmp_path / "usual").load()
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        torch.set_default_dtype(dtype)
        path = tmp_path / str(dtype)
        CheckpointStore(path, method=method, moments=moments).save(1, whole)
        assert is_same(CheckpointStore(path).load(), usual)
        assert is_same(CheckpointStore(tmp_path / "usual").load(), usual)


CASES = [(method, "8bit") for method in ("lattice", "dynaquant", "cnr", "qd", "gobo", "topn", "scar", "lc")]
CASES += [("excp", "compact"), ("lattice", "compact"), ("dynaquant", "minimal"), ("lattice", "sparse")]


def of_all_dtypes(moved: float) -> dict[str, object]:
    """Weights and moments of all dtypes, some subnormal."""
    generator = torch.Generator().manual_seed(0)
    dtypes = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
    model, moments = {}, {}
    for number, (name, dtype) in enumerate(dtypes.items()):
        values = torch.randn(64, 48, generator=generator)
        values[:3] *= moved
        values[:, ::5] *= 1e-40 if dtype == torch.float32 else 0
        model[name], model[f"{name}_bias"] = values.to(dtype), values[0].to(dtype)
        slow = {"exp_avg": values * 1e-2, "exp_avg_sq": values.square() * 1e-4}
        moments[number] = {"step": 1, **{key: value.to(dtype) for key, value in slow.items()}}
    groups = [{"lr": 0.1, "params": list(moments)}]
    return {"model": model, "optimizer": {"state": moments, "param_groups": groups}}


STATES = [of_all_dtypes(moved) for moved in (1.0, 1.5, 2.0)]


def saved_thrice(path: Path, method: str, moments: str) -> list[object]:
    """What is read of a key, of a delta, and of a delta after a restore."""
    found = []
    for step, state in enumerate(STATES, 1):
        if step != 2:
            store = CheckpointStore(path, method=method, moments=moments)
            if step == 3:
                store.resume()
        store.save(step, state)
        found.append(CheckpointStore(path).load())
    store.compact()
    assert store.verify(deep=True) == []
    store.close()
    return found


@pytest.mark.parametrize(("method", "moments"), CASES)
@pytest.mark.parametrize("threads", ["1", "2"])
def test_autocast_around_a_save_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, moments: str, threads: str
) -> None:
    """It raised where a tensor is of the half that autocast does not take."""
    monkeypatch.setenv("DYNAQUANT_THREADS", threads)
    usual = saved_thrice(tmp_path / "usual", method, moments)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            again = saved_thrice(tmp_path / str(dtype), method, moments)
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype  # as the loop has it
        assert all(is_same(found, expected) for found, expected in zip(again, usual, strict=True))


@pytest.mark.parametrize(("method", "moments"), CASES)
def test_flushed_subnormal_numbers_do_not_matter(tmp_path: Path, method: str, moments: str) -> None:
    usual = saved_thrice(tmp_path / "usual", method, moments)
    level_table.cache_clear()
    try:
        torch.set_flush_denormal(True)
        again = saved_thrice(tmp_path / "flushed", method, moments)
        assert float(torch.tensor(1e-40) * torch.ones(())) == 0.0  # as the loop has it
    finally:
        torch.set_flush_denormal(False)
        level_table.cache_clear()
    assert all(is_same(found, expected) for found, expected in zip(again, usual, strict=True))


def test_a_search_measures_with_the_autocast_of_the_loop(tmp_path: Path) -> None:
    state = {"w": torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).to(torch.float16)}
    seen: list[torch.dtype] = []

    def evaluate(tree: dict[str, torch.Tensor]) -> float:
        seen.append((torch.ones(2, 64) @ tree["w"].float()).dtype)
        return float(tree["w"].double().square().mean())

    with torch.autocast("cpu", torch.bfloat16):
        save_file(state, tmp_path / "w.dq", threshold=0.05, evaluate=evaluate)
    assert len(seen) > 1
    assert set(seen) == {torch.bfloat16}
