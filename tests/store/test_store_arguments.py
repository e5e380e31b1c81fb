"""Arguments of a wrong type, and paths: one clear error each, or the meaning that is documented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.errors import ConfigError
from dynaquant_core.store import CheckpointStore
from tests.store.kit import exact_store, filled, small_state


def test_gradients_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(dq.ConfigError, match="gradients must be tensors"):
        CheckpointStore(tmp_path).save(1, small_state(1), gradients={"w": 3})  # type: ignore[dict-item]


@pytest.mark.parametrize("method", ["lattice", "dynaquant", "excp"])
@pytest.mark.parametrize(
    "gradient",
    [torch.ones(2, 2).to_sparse(), torch.ones(2, 2, device="meta"), torch.ones(2, 2, dtype=torch.complex64)],
    ids=["sparse", "meta", "complex"],
)
def test_gradients_that_have_no_numbers_to_look_at_are_refused(
    tmp_path: Path, gradient: torch.Tensor, method: str
) -> None:
    store = CheckpointStore(tmp_path, method=method)
    with pytest.raises(dq.ConfigError, match=r"gradients must be dense.*'w'"):
        store.save(1, {"w": torch.ones(2, 2)}, gradients={"w": gradient})


def test_what_fits_no_tensor_of_the_state_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layer, other = torch.nn.Linear(64, 64), torch.nn.Linear(3, 2)
    gradients = {name: torch.ones_like(value) for name, value in other.named_parameters()}
    with CheckpointStore(tmp_path) as store:
        for step in range(2):
            store.save(step, layer.state_dict(), gradients=gradients, model=other)
    said = [line.getMessage() for line in caplog.records if "nothing is made of them" in line.getMessage()]
    assert [line.partition(":")[0] for line in said] == ["gradients", "model"]


def test_a_model_under_other_names_is_known_by_its_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layer = torch.nn.Linear(64, 64)
    state = {"renamed": layer.weight.detach(), "too": layer.bias.detach()}
    CheckpointStore(tmp_path).save(0, state, model=layer)
    assert "nothing is made" not in caplog.text


def test_complex_squares_of_a_real_weight_say_nothing_of_it(tmp_path: Path) -> None:
    """Warnings are errors in the tests."""
    weight = torch.linspace(-1, 1, 4096).reshape(64, 64)
    odd = {"exp_avg_sq": torch.ones(64, 64, dtype=torch.complex64)}
    state = {"model": {"w": weight}, "optimizer": {"state": {0: odd}, "param_groups": []}}
    CheckpointStore(tmp_path).save(1, state)
    assert torch.allclose(CheckpointStore(tmp_path).load()["model"]["w"], weight, atol=0.5)


@pytest.mark.parametrize("kind", ["state", "list", "class", "states"])
def test_a_model_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    """It told nothing, so that buffers were rounded as weights are, without a word."""
    model = torch.nn.BatchNorm1d(512)
    state = model.state_dict()
    given = {"state": state, "list": [model], "class": type(model), "states": {"net": state}}[kind]
    store = CheckpointStore(tmp_path / "store")
    for save in (
        lambda: dq.save_file({"model": state}, tmp_path / "model.dq", model=given),
        lambda: store.save(1, {"model": state}, model=given),
    ):
        with pytest.raises(dq.ConfigError, match=r"model must be a module.*give the model itself"):
            save()
    assert not [*tmp_path.rglob("*.dq")]


@pytest.mark.parametrize("path", [None, 3, b"run", ["run"], "a\0b", "s3://run", Path("gs://b/run")])
def test_what_is_no_path_is_refused_everywhere(tmp_path: Path, path: Any) -> None:
    filled(tmp_path)
    export = exact_store(tmp_path).export
    for use in (
        CheckpointStore, dq.load_file, lambda path: dq.save_file({}, path), lambda path: export(20, path),
    ):  # fmt: skip
        with pytest.raises(dq.ConfigError, match="path must"):
            use(path)


def test_other_arguments_of_a_wrong_type_are_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    store: Any = exact_store(tmp_path)
    for names in (3, [3], torch.ones(2)):
        with pytest.raises(dq.ConfigError, match="names must be"):
            store.load(names=names)
    with pytest.raises(dq.ConfigError, match="whole number"):
        store.unpin([])
    with pytest.raises(dq.ConfigError, match="exporter's name"):
        store.export(20, tmp_path / "out", to=["pt"])


def test_a_relative_path_is_meant_from_where_the_store_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = exact_store(Path("run"))
    store.save(1, small_state(1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    store.save(2, small_state(2))
    assert store.steps() == CheckpointStore(tmp_path / "run").steps() == [1, 2]
    assert not list(Path().iterdir())


@pytest.mark.parametrize("kind", [np.int64, np.uint8, torch.tensor])
def test_whole_numbers_of_any_kind_are_steps(tmp_path: Path, kind: Any) -> None:
    with CheckpointStore(tmp_path, exact="*") as store:
        assert store.save(kind(7), {"w": torch.ones(2)}).step == 7
        assert store.load(kind(7))["w"].tolist() == [1.0, 1.0]
        store.pin(kind(7))
        store.unpin(kind(7))
        for none in (True, 7.0, "7", None):
            with pytest.raises(ConfigError, match="step must be a whole number"):
                store.save(none, {"w": torch.ones(2)})  # type: ignore[arg-type]
        store.delete(kind(7))
        assert store.steps() == []


def test_a_name_with_brackets_is_a_name_before_it_is_a_pattern(tmp_path: Path) -> None:
    """What was copied from `show --tensors` covered nothing, and its weights lost bits."""
    state = {f"layers[{one}]": torch.randn(64, 64) for one in range(2)}
    store = CheckpointStore(tmp_path, exact="layers[0]")
    store.save(1, state)
    loaded = store.load(1, names="layers[0]")
    assert list(loaded) == ["layers[0]"]
    assert torch.equal(loaded["layers[0]"], state["layers[0]"])
    assert not torch.equal(store.load(1)["layers[1]"], state["layers[1]"])
