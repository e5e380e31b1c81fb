"""Which method a save takes: the one asked for, else that of what the run goes on from, else the default."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.methods.registry import DEFAULT_METHOD
from dynaquant_core.store import CheckpointInfo, CheckpointStore
from dynaquant_core.store.trail import Trail
from tests.fixtures.make_stores import STORES, state_of
from tests.store.kit import small_state

OTHER = {"name": "dynaquant", "sigma": 0.2}


def begun(folder: Path) -> Path:
    """A store that an earlier version began with `dynaquant`."""
    return Path(shutil.copytree(STORES / "dynaquant", folder))


def gone_on(folder: Path, **options: object) -> CheckpointInfo:
    """Restores the newest checkpoint and saves what training made of it."""
    with CheckpointStore(folder, max_chain=20, **options) as store:  # type: ignore[arg-type]
        state = store.load()
        return store.save(50, {"model": state["model"], "optimizer": state_of(50)["optimizer"]})


def other_run(folder: Path) -> CheckpointStore:
    """A fresh store with one checkpoint by a method that is not the default."""
    with CheckpointStore(folder, method=OTHER) as store:
        store.save(1, small_state(1))
    return CheckpointStore(folder)


def test_a_fresh_run_takes_the_default(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path).method.name == DEFAULT_METHOD == "lattice"
    assert CheckpointStore(tmp_path / "store").save(1, small_state(1)).method == "lattice"
    assert dq.save_file(small_state(1), tmp_path / "file.dq").method == "lattice"


def test_a_store_that_was_begun_before_goes_on_as_before(tmp_path: Path) -> None:
    info, asked = gone_on(begun(tmp_path / "a")), gone_on(begun(tmp_path / "b"), method="dynaquant")
    assert info.method == "dynaquant"
    assert (info.options, info.kind, info.parts["weight"]) == (
        asked.options,
        asked.kind,
        asked.parts["weight"],
    )
    with CheckpointStore(tmp_path / "a", max_chain=0) as store:
        store.compact()
        assert {store.info(step).method for step in store.steps()} == {"dynaquant"}
        assert store.verify(deep=True) == []


def test_another_method_is_taken_when_it_is_named(tmp_path: Path) -> None:
    folder = begun(tmp_path / "store")
    info = gone_on(folder, method="lattice")
    assert (info.method, info.kind) == ("lattice", "key")
    assert CheckpointStore(folder).verify(deep=True) == []
    assert gone_on(folder).method == "lattice"  # from now on this is the store's own


def test_options_are_kept_too(tmp_path: Path) -> None:
    store = other_run(tmp_path)
    store.load()
    info = store.save(2, small_state(2))
    assert (info.method, info.options["sigma"], info.kind) == ("dynaquant", 0.2, "delta")


@pytest.mark.parametrize("names", ["model.layer1", "rng"])
def test_reading_a_part_is_enough(tmp_path: Path, names: str) -> None:
    store = other_run(tmp_path)
    store.load(names=names)
    assert store.save(2, small_state(2)).options["sigma"] == 0.2


def test_loading_into_a_tree_is_enough(tmp_path: Path) -> None:
    store = other_run(tmp_path)
    store.load_into(small_state(3))
    assert store.method.options()["sigma"] == 0.2


def test_a_config_s_method_stays_until_the_store_is_told_otherwise(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        assert store.save(1, small_state(1), config=dq.Config(bins=8)).method == "dynaquant"
        assert store.save(2, small_state(2)).method == "dynaquant"
        assert store.save(3, small_state(3), config=dq.LatticeConfig(scale=0.1)).method == "lattice"
        assert store.save(4, small_state(4)).method == "lattice"


def test_what_holds_no_weights_says_nothing_about_the_method(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        assert store.save(1, {"count": torch.tensor(1)}).method == "exact"
        store.load()
        assert store.save(2, small_state(2)).method == "lattice"


def diverged() -> dict[str, object]:
    """A state of which no method takes a tensor."""
    return {"model": {"weight": torch.full((24, 32), torch.nan)}}


@pytest.mark.parametrize("compacted", [False, True])
def test_a_checkpoint_without_a_tensor_of_the_method_still_names_it(tmp_path: Path, compacted: bool) -> None:
    with CheckpointStore(tmp_path, method=OTHER) as store:
        store.save(1, diverged())
        assert store.save(2, diverged()).kind == "delta"
    with CheckpointStore(tmp_path, max_chain=0) as store:
        if compacted:
            store.compact()
            assert store.info(2).kind == "key"
        store.load()
        info = store.save(3, small_state(3), config=dq.Config(bins=8))
    assert (info.method, info.options["sigma"]) == ("dynaquant", 0.2)


def test_a_trail_s_checkpoint_without_a_tensor_of_the_method_still_names_it(tmp_path: Path) -> None:
    first, second = Trail(method=OTHER), Trail()
    saving = first.begin(1, diverged())
    second.load(tmp_path, first.commit(saving.seal(saving.draft()), tmp_path)[1])
    assert second.method.options()["sigma"] == 0.2


def test_a_trail_goes_on_with_what_it_loaded(tmp_path: Path) -> None:
    first, folder = Trail(method=OTHER), tmp_path / "1"
    folder.mkdir()
    saving = first.begin(1, small_state(1))
    _, link = first.commit(saving.seal(saving.draft()), folder)
    second = Trail()
    assert second.method.name == "lattice"
    second.load(folder, link)
    assert second.method.options()["sigma"] == 0.2
    saving = second.begin(2, small_state(2))
    assert second.commit(saving.seal(saving.draft()), folder)[0].kind == "delta"
    second.leave_method()
    assert second.method.name == "lattice"
