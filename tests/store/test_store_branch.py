"""A full chain takes a second line of deltas, on a link in its middle, before a new key is written."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.config import LatticeConfig
from dynaquant_core.methods.exact import Exact
from dynaquant_core.methods.lc import Lc
from dynaquant_core.store import CheckpointStore
from tests.store.kit import checkpoint_files, exact_store, is_same, small_state
from tests.store.merging import TWO, state_of
from tests.store.small_run import Run
from tests.store.test_store_lattice import lattice_store


def bases(store: CheckpointStore) -> list[int | None]:
    """What each checkpoint of a store builds on, oldest first."""
    return [store.info(step).base_step for step in store.steps()]


@pytest.mark.parametrize(
    ("max_chain", "expected"),
    [
        (0, [None, None, None, None]),
        (1, [None, 1, 1, None, 4, 4, None]),
        (2, [None, 1, 2, 2, None, 5, 6, 6, None]),
        (4, [None, 1, 2, 3, 4, 3, 6, None, 8]),
        (5, [None, 1, 2, 3, 4, 5, 3, 7, 8, None]),
    ],
)
def test_what_each_checkpoint_builds_on(tmp_path: Path, max_chain: int, expected: list[int | None]) -> None:
    with exact_store(tmp_path, max_chain=max_chain) as store:
        for step in range(1, 1 + len(expected)):
            store.save(step, small_state(step))
    assert bases(CheckpointStore(tmp_path)) == expected
    assert all(is_same(CheckpointStore(tmp_path).load(step), small_state(step)) for step in store.steps())


@pytest.mark.parametrize("moments", ["8bit", "compact"])
@pytest.mark.parametrize("method", ["lattice", "dynaquant", "qd", "cnr", "lc"])
def test_every_method_goes_back(tmp_path: Path, method: str, moments: str) -> None:
    run, shown = Run(), {}
    with CheckpointStore(tmp_path, method=method, moments=moments, max_chain=4) as store:
        for _ in range(8):
            saving = store.begin(run.train(), run.numbered())
            draft = saving.draft()
            shown[run.step] = {name: tensor.clone() for name, tensor in draft.decoded}
            saving.seal(draft).write()
    assert [store.info(step).base_step is None for step in shown].count(True) == (8 if method == "cnr" else 2)
    for step, weights in shown.items():
        model = CheckpointStore(tmp_path).load(step)["model"]
        assert all(torch.equal(model[name.removeprefix("model.")], found) for name, found in weights.items())
    assert store.verify(deep=True) == []


def test_the_second_line_costs_less_than_a_key(tmp_path: Path) -> None:
    """By so much as makes it worth its while: a key of these weights takes three deltas and more."""
    run = Run()
    with lattice_store(tmp_path, max_chain=4, moments="none") as store:
        sizes = [
            store.save(run.train(), run.numbered(), config=LatticeConfig(scale=2.0)).stored_bytes
            for _ in range(8)
        ]
    assert sizes[5] < 0.7 * min(sizes[0], sizes[7])


def test_a_restored_run_does_not_go_back_behind_its_restore(tmp_path: Path) -> None:
    """The lattice of a link from before the restore would pull the weights back to where they were."""
    for stop, expected in ((4, [None, 1, 2, 3, 4, None]), (2, [None, 1, 2, 3, 4, 3])):
        folder = tmp_path / str(stop)
        with exact_store(folder, max_chain=4) as store:
            for step in range(1, stop + 1):
                store.save(step, small_state(step))
        with exact_store(folder, max_chain=4) as store:
            store.load()
            for step in range(stop + 1, 7):
                store.save(step, small_state(step))
        assert bases(CheckpointStore(folder)) == expected


def test_a_link_that_was_damaged_is_not_built_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with exact_store(tmp_path, max_chain=4) as store:
        for step in range(1, 5):
            store.save(step, small_state(step))
        held = checkpoint_files(tmp_path)[2].read_bytes()
        saving = store.begin(5, small_state(5))
        checkpoint_files(tmp_path)[2].write_bytes(held[: len(held) // 2])
        with caplog.at_level(logging.WARNING):
            saving.seal(saving.draft()).write()
            info = store.save(6, small_state(6))
        assert info.base_step is None
        assert "so a key is written" in caplog.text
    assert is_same(CheckpointStore(tmp_path).load(), small_state(6))
    checkpoint_files(tmp_path)[2].write_bytes(held)
    assert CheckpointStore(tmp_path).verify(deep=True) == []


class Cramped(Exact):
    """Reads nothing, as where other memory was taken meanwhile."""

    def decode(self, *_: Any) -> Any:
        raise MemoryError


def test_a_link_that_there_is_no_memory_for_fails_no_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint was committed by then: its save must not be said to have failed."""
    with CheckpointStore(tmp_path, method=Cramped(), moments="exact", max_chain=2) as store:
        kinds = [store.save(step, small_state(step)).kind for step in range(1, 5)]
    assert kinds == ["key", "delta", "delta", "key"]
    assert "so a key is written: MemoryError" in caplog.text
    assert all(is_same(CheckpointStore(tmp_path).load(step), small_state(step)) for step in range(1, 5))


@pytest.mark.parametrize("remove", ["delete", "compact"])
def test_links_that_are_written_anew_are_not_built_on(tmp_path: Path, remove: str) -> None:
    with exact_store(tmp_path, max_chain=4) as store:
        for step in range(1, 5):
            store.save(step, small_state(step))
        store.delete(1) if remove == "delete" else CheckpointStore.compact(store)
        for step in range(5, 9):
            store.save(step, small_state(step))
    fresh = CheckpointStore(tmp_path)
    assert fresh.verify(deep=True) == []
    assert all(is_same(fresh.load(step), small_state(step)) for step in fresh.steps())


def test_a_link_that_compact_removed_is_not_called_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The full chain goes back to its middle, which nothing needs any more once the newest stands alone."""
    with exact_store(tmp_path, max_chain=4, keep_last=1) as store:
        for step in range(1, 6):
            store.save(step, small_state(step))
        store.compact()
        assert store.steps() == [5]
        with caplog.at_level(logging.WARNING):
            assert store.save(6, small_state(6)).kind == "key"
    assert caplog.text == ""
    assert is_same(CheckpointStore(tmp_path).load(), small_state(6))


def test_a_middle_that_was_merged_away_is_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Links above and below it became one, in the background: the chain has another middle since."""
    options = {"method": Lc(super_step=2), "max_chain": 3, "keep_last": 2}
    with caplog.at_level(logging.WARNING), CheckpointStore(tmp_path, **options) as store:
        kinds = [store.save(step, state_of(step), config=TWO).kind for step in range(1, 15)]
    assert caplog.text == ""
    assert [place for place, kind in enumerate(kinds) if kind == "key"] == [0, 7]
    assert CheckpointStore(tmp_path).verify(deep=True) == []


def test_retention_keeps_what_the_second_line_needs_and_no_more(tmp_path: Path) -> None:
    with exact_store(tmp_path, max_chain=4, keep_last=1) as store:
        kept = [(store.save(step, small_state(step)), store.steps())[1] for step in range(1, 9)]
    assert kept[4:] == [[1, 2, 3, 4, 5], [1, 2, 3, 6], [1, 2, 3, 6, 7], [8]]


def test_a_checkpointer_goes_back_too(tmp_path: Path) -> None:
    run = Run()
    evaluate = lambda: run.model(torch.arange(50)).square().mean().item()  # noqa: E731
    with dq.Checkpointer(
        tmp_path, run.model, run.optimizer, every=1, evaluate=evaluate, max_chain=2
    ) as checkpoints:
        for _ in range(5):
            run.train()
            checkpoints.step()
    assert bases(CheckpointStore(tmp_path)) == [None, 1, 2, 2, None]
