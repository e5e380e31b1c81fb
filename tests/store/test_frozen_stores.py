"""Stores that an earlier version wrote decode to the same bits as then, and can be gone on with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dynaquant_core.store import CheckpointStore
from tests.fixtures.make_stores import RUNS, STORES, digests, state_of


@pytest.mark.parametrize("method", RUNS)
def test_every_checkpoint_is_what_it_was(method: str) -> None:
    expected = json.loads((STORES / method / "expected.json").read_text())
    store = CheckpointStore(STORES / method)
    assert list(map(str, store.steps())) == list(expected)
    assert store.verify(deep=True) == []
    assert {store.info(step).kind for step in store.steps()} == {"key", "delta"}
    for step, state in expected.items():
        assert dict(digests(store.load(int(step)))) == state


@pytest.mark.parametrize("method", RUNS)
def test_a_run_goes_on_in_an_old_store(tmp_path: Path, method: str) -> None:
    folder = tmp_path / method
    shutil.copytree(STORES / method, folder)
    with CheckpointStore(folder, method=method, max_chain=20) as store:
        state = store.load()
        store.save(50, {"model": state["model"], "optimizer": state_of(50)["optimizer"]})
        store.compact()
        assert store.verify(deep=True) == []
