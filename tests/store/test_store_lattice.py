"""The method `lattice` in a store: what it takes, chains, retention, other methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.config import LatticeConfig
from dynaquant_core.store import CheckpointStore
from tests.store.kit import checkpoint_files, is_same
from tests.store.small_run import Run


def lattice_store(path: Path, **options: Any) -> CheckpointStore:
    return CheckpointStore(path, method="lattice", **options)


def filled(path: Path, count: int = 8, scales: tuple[Any, ...] = (0.5,), **options: Any) -> dict[int, Any]:
    """Saves a run of some checkpoints, restored after every third; returns what each decodes to, by step."""
    run, shown = Run(), {}
    store = lattice_store(path, **options)
    for number in range(count):
        step = run.train()
        store.save(step, run.numbered(), config=LatticeConfig(scale=scales[number % len(scales)]))
        shown[step] = CheckpointStore(path).load(step)
        if number % 3 == 2:
            store.close()
            store = lattice_store(path, **options)
            run.resume(store.load())
    store.close()
    return shown


def weights_part(store: CheckpointStore, step: int, state: Any, model: Any = None) -> set[str]:
    """Names of the tensors that the method takes."""
    return set(store.begin(step, state, model=model).live)


# -- what is taken -------------------------------------------------------------------------------


@pytest.mark.parametrize("naming", ["named", "numbered"])
def test_vectors_are_taken_where_an_optimizer_trains_them(tmp_path: Path, naming: str) -> None:
    run = Run()
    store = lattice_store(tmp_path)
    before = weights_part(store, 0, getattr(run, naming)())
    matrices = {"model.0.weight", "model.1.weight", "model.4.weight"}
    assert before == matrices
    run.train()
    vectors = {"model.1.bias", "model.3.weight", "model.3.bias", "model.4.bias"}
    assert weights_part(store, 3, getattr(run, naming)(), run.model) == matrices | vectors
    sure = vectors if naming == "named" else {"model.4.bias"}  # the buffer "table" is as long as the others
    assert weights_part(store, 3, getattr(run, naming)()) == matrices | sure
    others = CheckpointStore(tmp_path / "other", method="dynaquant")
    assert weights_part(others, 3, getattr(run, naming)()) == matrices


@pytest.mark.parametrize("naming", ["named", "numbered"])
def test_everything_else_comes_back_bit_for_bit(tmp_path: Path, naming: str) -> None:
    run = Run()
    with lattice_store(tmp_path, moments="exact") as store:
        for _ in range(3):
            state = getattr(run, naming)() if run.train() else None
            info = store.save(run.step, state, model=run.model)
            loaded = CheckpointStore(tmp_path).load(run.step)
            assert is_same(loaded["optimizer"], state["optimizer"])
            for name in ("table", "odd", "steps", "scale"):
                assert is_same(loaded["model"][name], state["model"][name])
            for name in ("0.weight", "1.bias", "3.weight", "4.weight"):
                assert not torch.equal(loaded["model"][name], state["model"][name])
    assert info.kind == "delta"


def test_patterns_of_exact_are_kept_and_half_precision_stays_itself(tmp_path: Path) -> None:
    run = Run()
    run.train()
    state = run.numbered()
    state["model"] = {name: value.bfloat16() if value.is_floating_point() else value
                      for name, value in state["model"].items()}  # fmt: skip
    lattice_store(tmp_path, exact=("*.0.weight", "*.bias")).save(3, state)
    loaded = CheckpointStore(tmp_path).load()["model"]
    for name in ("0.weight", "1.bias", "3.bias", "odd"):
        assert is_same(loaded[name], state["model"][name])
    assert loaded["4.weight"].dtype == torch.bfloat16
    assert not torch.equal(loaded["4.weight"], state["model"]["4.weight"])


# -- chains --------------------------------------------------------------------------------------


def test_what_a_draft_shows_is_what_any_later_process_decodes(tmp_path: Path) -> None:
    run, shown = Run(), {}
    store = lattice_store(tmp_path, max_chain=3)
    for scale in (0.5, 0.5, 2.0, "bf16", 0.5, 0.02, 0.5, "exact", 0.5, 0.5):
        saving = store.begin(run.train(), run.numbered())
        draft = saving.draft(LatticeConfig(scale=scale))
        shown[run.step] = {name: tensor.clone() for name, tensor in draft.decoded}
        saving.seal(draft).write()
    kinds = [store.info(step).kind for step in shown]
    assert kinds[:7] == ["key", *["delta"] * 5, "key"]
    for step, tensors in shown.items():
        loaded = CheckpointStore(tmp_path).load(step)["model"]
        assert all(
            torch.equal(loaded[name.removeprefix("model.")], tensor) for name, tensor in tensors.items()
        )
    assert store.verify(deep=True) == []


def test_a_restored_run_that_saves_at_once_pays_next_to_nothing(tmp_path: Path) -> None:
    filled(tmp_path, 2, moments="exact")
    store = lattice_store(tmp_path, moments="exact")
    state = store.load()
    info = store.save(100, state)
    assert info.kind == "delta"
    assert info.stored_bytes < 4000
    again = CheckpointStore(tmp_path).load(100)
    assert is_same(again["model"], state["model"])


def test_names_load_a_part_of_a_chain(tmp_path: Path) -> None:
    shown = filled(tmp_path, 5, scales=(0.5, 0.02, 2.0))
    for step, state in shown.items():
        store = CheckpointStore(tmp_path)
        for name in state["model"]:
            (found,) = store.load(step, names=f"model.{name}")["model"].values()
            assert is_same(found, state["model"][name])
        part = store.load(step, names=("model.*.bias", "optimizer"))
        assert set(part) == {"model", "optimizer"}
        assert all(is_same(tensor, state["model"][name]) for name, tensor in part["model"].items())


@pytest.mark.parametrize("scales", [(0.5,), (0.5, 0.02, 2.0, "bf16")])
def test_compaction_and_removal_keep_every_bit_and_later_deltas(
    tmp_path: Path, scales: tuple[Any, ...]
) -> None:
    options = {"max_chain": 20, "moments": "exact"}
    shown = filled(tmp_path, 8, scales, **options)
    steps = list(shown)
    store = lattice_store(tmp_path, **options)
    state = store.load()
    for gone in (steps[0], steps[3], steps[4]):
        store.delete(gone)
        assert store.verify(deep=True) == []
    store.close()
    store = lattice_store(tmp_path, max_chain=2, keep_last=4, moments="exact")
    run = Run()
    run.resume(store.load())
    store.compact()
    assert store.verify(deep=True) == []
    for step in store.steps():
        assert is_same(CheckpointStore(tmp_path).load(step), shown[step])
    assert is_same(state, shown[steps[-1]])
    for _ in range(3):
        store.save(run.train(), run.numbered())
    assert store.verify(deep=True) == []
    assert is_same(CheckpointStore(tmp_path).load()["optimizer"], run.numbered()["optimizer"])


def test_retention_of_a_lattice_chain(tmp_path: Path) -> None:
    shown = filled(tmp_path, 9, keep_last=2, max_chain=3)
    store = CheckpointStore(tmp_path)
    assert set(list(shown)[-2:]) <= set(store.steps())
    assert len(store.steps()) < 9
    assert store.verify(deep=True) == []
    assert all(is_same(store.load(step), shown[step]) for step in store.steps())


def test_the_sealed_state_may_change_before_it_is_written(tmp_path: Path) -> None:
    run = Run()
    store = lattice_store(tmp_path)
    for _ in range(3):
        run.train()
        saving = store.begin(run.step, run.numbered())
        draft = saving.draft(LatticeConfig(scale=0.1))
        shown = {name: tensor.clone() for name, tensor in draft.decoded}
        sealed = saving.seal(draft)
        kept = {name: value.clone() for name, value in run.model.state_dict().items()}
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.fill_(-9.0)
        sealed.write()
        loaded = CheckpointStore(tmp_path).load(run.step)["model"]
        assert all(torch.equal(loaded[name.removeprefix("model.")], tensor) for name, tensor in shown.items())
        run.model.load_state_dict(kept)


# -- beside other methods ------------------------------------------------------------------------


def test_a_store_of_another_method_loads_and_goes_on_with_a_key(tmp_path: Path) -> None:
    run = Run()
    with CheckpointStore(tmp_path, method="dynaquant") as old:
        for _ in range(3):
            old.save(run.train(), run.numbered())
    before = {step: CheckpointStore(tmp_path).load(step) for step in (3, 6, 9)}
    with lattice_store(tmp_path) as store:
        run.resume(store.load())
        kinds = [store.save(run.train(), run.numbered()).kind for _ in range(2)]
    assert kinds == ["key", "delta"]
    fresh = CheckpointStore(tmp_path, method="dynaquant")
    assert all(is_same(fresh.load(step), state) for step, state in before.items())
    assert fresh.verify(deep=True) == []
    assert len(fresh.load(15)["model"]) == len(run.model.state_dict())


def test_a_point_picks_its_method(tmp_path: Path) -> None:
    run = Run()
    run.train()
    store = CheckpointStore(tmp_path, method="dynaquant")
    store.save(1, run.numbered(), config=LatticeConfig(scale=0.5))
    store.save(2, run.numbered(), config=dq.Config())
    assert [store.info(step).kind for step in (1, 2)] == ["key", "key"]
    assert CheckpointStore(tmp_path).verify(deep=True) == []


def test_a_missing_base_is_named(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    checkpoint_files(tmp_path)[0].unlink()
    with pytest.raises(dq.MissingBaseError):
        CheckpointStore(tmp_path).load(9)


def test_a_frozen_backbone_is_not_written_again_to_spare_the_adapter_some_bytes(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    backbone, adapter = torch.randn(512, 512, generator=draw), torch.randn(8, 512, generator=draw)
    for reopened in (False, True):
        folder = tmp_path / str(reopened)
        store = CheckpointStore(folder, exact=("backbone",), max_chain=16)
        for step in range(10):
            if reopened and step:
                store = CheckpointStore(folder, exact=("backbone",), max_chain=16)
                store.resume()
            store.save(step, {"model": {"backbone": backbone, "adapter": adapter.clone()}})
            adapter += torch.randn(8, 512, generator=draw)
        sizes = [store.info(step).stored_bytes for step in store.steps()]
        assert max(sizes[1:]) < 0.01 * sizes[0]


# -- a delta and then a key, both drafted in one save ------------------------------------------------


def test_a_key_by_size_leaves_a_frozen_layer_where_it_is(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    CheckpointStore(tmp_path).save(0, {"frozen": noise(draw, 64, 64), "fc": noise(draw, 512, 256)})
    store = CheckpointStore(tmp_path)
    state = store.load()
    frozen = state["frozen"].clone()
    kinds = []
    for step in range(1, 5):
        state["fc"] = noise(draw, 512, 256) * (1 + step)
        kinds.append(store.save(step, state, config=LatticeConfig(scale=0.3)).kind)
        assert torch.equal(CheckpointStore(tmp_path).load(step)["frozen"], frozen)
    assert "key" in kinds


def test_a_key_by_size_where_rows_stayed(tmp_path: Path) -> None:
    """Some tokens occurred after one restore and none after the next, and another layer moved far."""
    draw = torch.Generator().manual_seed(0)
    CheckpointStore(tmp_path).save(0, {"emb.weight": noise(draw, 64, 32), "fc.weight": noise(draw, 64, 64)})
    for step in (1, 2, 3):
        store = CheckpointStore(tmp_path)
        state = store.load()
        if step == 1:
            state["emb.weight"][:8] += 0.3 * noise(draw, 8, 32)
        state["fc.weight"] = noise(draw, 64, 64) * (1 + step)
        store.save(step, state, config=LatticeConfig(scale=0.3))
        assert torch.equal(CheckpointStore(tmp_path).load(step)["emb.weight"][8:], state["emb.weight"][8:])


def noise(draw: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=draw)
