"""Compacting: what stays decodes to the same bits, in fewer files and shorter chains, also when cut short."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import dynaquant_core as dq
from dynaquant_core.errors import BudgetError
from dynaquant_core.store import CheckpointStore, upkeep
from dynaquant_core.store.rebase import rebase
from tests.store.kit import checkpoint_files, exact_store, filled, is_same, small_state


def test_compact_frees_the_bases_bit_for_bit(tmp_path: Path) -> None:
    for method in ("exact", "dynaquant"):
        path = tmp_path / method
        with CheckpointStore(path, method=method) as store:
            for step in (1, 2, 3, 4):
                store.save(step, small_state(step))
        before = {step: CheckpointStore(path).load(step) for step in (3, 4)}
        infos = {step: CheckpointStore(path).info(step) for step in (3, 4)}
        CheckpointStore(path, method=method, keep_last=2).compact()
        store = CheckpointStore(path, method=method)
        assert store.steps() == [3, 4]
        assert len(checkpoint_files(path)) == 2
        assert store.verify(deep=True) == []
        for step in (3, 4):
            assert is_same(store.load(step), before[step])
            assert store.info(step).sequence == infos[step].sequence
        assert store.info(3).kind == "key"
        store.save(5, small_state(5))
        assert store.verify(deep=True) == []
        store.close()


@pytest.mark.parametrize("config", [dq.Config(bins=8), dq.Config(bins="bf16"), dq.Config(bins="exact")])
@pytest.mark.parametrize("scope", ["tensor", "global"])
def test_compact_keeps_the_codes_so_that_deltas_still_fit(
    tmp_path: Path, config: dq.Config, scope: str
) -> None:
    method = {"name": "dynaquant", "codebook_scope": scope}
    with CheckpointStore(tmp_path, method=method) as store:
        for step in (1, 2, 3, 4):
            store.save(step, small_state(step), config=config)
        before = {step: store.load(step) for step in (3, 4)}
        delta = store.info(4)
    with CheckpointStore(tmp_path, method=method, keep_last=2) as store:
        store.compact()
        assert [store.info(step).kind for step in (3, 4)] == ["key", "delta"]
        assert [store.info(step).method for step in (3, 4)] == ["dynaquant"] * 2
        assert store.info(4).parts["weight"] == delta.parts["weight"]
        assert all(is_same(store.load(step), before[step]) for step in (3, 4))


def test_compact_shortens_chains(tmp_path: Path) -> None:
    filled(tmp_path, (1, 2, 3, 4, 5))
    CheckpointStore(tmp_path, max_chain=1).compact()
    store = CheckpointStore(tmp_path)
    assert [store.info(step).kind for step in store.steps()] == ["key", "delta", "key", "delta", "key"]
    assert all(is_same(store.load(step), small_state(step)) for step in store.steps())
    before = sorted(tmp_path.iterdir())
    store.compact()  # nothing is left to do
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("method", ["dynaquant", "lattice"])
def test_a_compact_that_is_cut_short_again_and_again_ends_where_one_does(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointStore(tmp_path / "once", method=method, max_chain=20) as store:
        for step in range(8):
            store.save(step, small_state(step))
    shutil.copytree(tmp_path / "once", tmp_path / "often")
    kept_steps: dict[str, Any] = {"method": method, "max_chain": 20, "keep_last": 5}
    CheckpointStore(tmp_path / "once", **kept_steps).compact()
    for lived in (1, 2):
        left = iter(range(lived))

        def one_more(*given: Any, left: Any = left) -> Any:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return rebase(*given)

        with monkeypatch.context() as patched:
            patched.setattr(upkeep, "rebase", one_more)
            with pytest.raises(KeyboardInterrupt):
                CheckpointStore(tmp_path / "often", **kept_steps).compact()
    CheckpointStore(tmp_path / "often", **kept_steps).compact()
    once, often = (CheckpointStore(tmp_path / name, method=method) for name in ("once", "often"))
    assert often.verify(deep=True) == []
    kinds = [often.info(step).kind for step in often.steps()]
    assert kinds == [once.info(step).kind for step in once.steps()] == ["key", *["delta"] * 4]
    assert all(is_same(often.load(step), once.load(step)) for step in once.steps())


def test_compact_by_the_object_that_saves_keeps_its_run_going(tmp_path: Path) -> None:
    store = exact_store(tmp_path, keep_last=1)
    for step in (1, 2, 3):
        store.save(step, small_state(step))
    store.compact()
    assert store.steps() == [3]
    store.save(4, small_state(4))
    assert is_same(CheckpointStore(tmp_path).load(), small_state(4))


def test_compact_leaves_what_it_cannot_read(tmp_path: Path) -> None:
    filled(tmp_path, (1, 2, 3))
    data = bytearray(checkpoint_files(tmp_path)[1].read_bytes())
    data[len(data) // 2] ^= 1
    checkpoint_files(tmp_path)[1].write_bytes(data)
    CheckpointStore(tmp_path, keep_last=1).compact()
    assert len(checkpoint_files(tmp_path)) == 3


def test_a_budget_that_nothing_fits_removes_nothing(tmp_path: Path) -> None:
    """A unit that was forgotten: all but the newest went, and the store was over the budget still."""
    filled(tmp_path, (1, 2, 3))
    before = checkpoint_files(tmp_path)
    with pytest.raises(BudgetError, match=r"but keep_within allows 100; nothing was removed"):
        CheckpointStore(tmp_path, keep_within=100).compact()
    assert checkpoint_files(tmp_path) == before
    largest = max(file.stat().st_size for file in before)
    CheckpointStore(tmp_path, keep_within=int(1.1 * largest)).compact()
    assert CheckpointStore(tmp_path).steps() == [3]
