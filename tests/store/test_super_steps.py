"""Links merged into super steps: same bits, fewer files, and nothing lost whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Merging, Reference, Stream, StreamSource
from dynaquant_core.methods.lc import Lc
from dynaquant_core.store import CheckpointStore
from dynaquant_core.store.meta import PartMeta
from dynaquant_core.store.super_step import due
from tests.kill_shim import report_of
from tests.store.kit import call_instead, checkpoint_files, is_same, leftovers
from tests.store.merging import TWO, expected, lc_store, saved, state_of
from tests.store.super_step_runner import SCENARIOS

STEPS = tuple(range(10, 90, 10))


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """What a reader gets of each step where nothing is merged."""
    return expected(tmp_path_factory.mktemp("twin") / "store", STEPS)


def wrong_steps(path: Path, states: dict[int, Any]) -> list[int]:
    """Steps that do not load to the same bits, and files that do not decode."""
    reader = CheckpointStore(path)
    bad = [problem.step for problem in reader.verify(deep=True)]
    return bad + [step for step in reader.steps() if not is_same(reader.load(step), states[step])]


def names(path: Path) -> list[str]:
    """Sequence and revision of each checkpoint file, short."""
    return [file.stem.split("-seq-")[1].lstrip("0") for file in checkpoint_files(path)]


# -- which links ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """One file of a chain, as the plan sees it."""

    sequence: int
    links: int


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([1, 1, 1, 3])), min_size=1), st.integers(2, 5))
@settings(max_examples=300, deadline=None)
def test_a_run_is_of_plain_links_that_only_its_last_is_wanted_of(
    drawn: list[tuple[bool, int]], period: int
) -> None:
    chain = [Place(number, links if number else 1) for number, (_, links) in enumerate(drawn)]
    wanted = {number for number, (stays, _) in enumerate(drawn) if stays} | {len(chain) - 1}
    found = due(chain, wanted, period)
    if found is not None:
        base, last = found
        assert last in wanted
        assert all(link.links == 1 for link in chain[base + 1 : last + 1])
        assert not wanted & set(range(base + 1, last))
        assert last - base >= max(period, len(chain) - 1 - last)


def test_a_run_comes_up_once_a_period() -> None:
    ups = [due([Place(i, 1) for i in range(size)], {size - 1}, 3) is not None for size in range(1, 12)]
    assert [size - 1 for size, up in enumerate(ups, start=1) if up] == [3, 6, 9]


@pytest.mark.parametrize("links", [-1, 1 << 63, True, "3", None])
def test_links_of_a_super_step_that_are_no_number_are_refused(links: object) -> None:
    part = {"method": "lc", "options": {}, "config": {}}
    assert PartMeta.from_dict(part | {"super_step": 3}, "a.dq").as_dict() == part | {"super_step": 3}
    assert PartMeta.from_dict(part, "a.dq").as_dict() == part, "as it always was"
    with pytest.raises(CorruptFileError, match=r"a\.dq: 'super_step' must be a whole number"):
        PartMeta.from_dict(part | {"super_step": links}, "a.dq")


# -- what a store does ---------------------------------------------------------------------------


def test_links_between_go_and_every_step_is_the_same(tmp_path: Path, states: dict[int, Any]) -> None:
    with lc_store(tmp_path, 3, keep_last=1) as store:
        seen = []
        for step in STEPS:
            saved(store, step)
            seen.append(names(tmp_path))
            assert wrong_steps(tmp_path, states) == []
    assert seen[2:5] == [["1", "2", "3"], ["1", "4-r1"], ["1", "4-r1", "5"]]
    assert seen[-1] == ["1", "4-r1", "7-r1", "8"]
    info = CheckpointStore(tmp_path).info(70)
    assert (info.kind, info.base_step, info.method) == ("delta", 40, "lc")
    assert leftovers(tmp_path) == []


def test_a_super_step_is_smaller_than_its_links_and_tells_how_long_it_took(
    tmp_path: Path, states: dict[int, Any]
) -> None:
    with lc_store(tmp_path / "plain", keep_last=1) as plain:
        saved(plain, *STEPS[:4])
    with lc_store(tmp_path / "merged", 3, keep_last=1) as store:
        saved(store, *STEPS[:3])
        info = store.save(40, state_of(40), config=TWO)
    sizes = [
        sum(file.stat().st_size for file in (tmp_path / name).glob("*.dq")) for name in ("plain", "merged")
    ]
    assert sizes[1] < sizes[0]
    assert info.seconds["merge"] > 0
    assert info.base_step == 30, "as it was saved"
    assert is_same(CheckpointStore(tmp_path / "merged").load(), states[40])


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({"keep_last": 2}, ["1", "4-r1", "7-r1", "8-r1"]),
        ({"keep_last": 1, "keep_every": 30}, ["1", "2", "3", "6-r1", "7", "8"]),
        ({}, ["1", "2", "3", "4", "5", "6", "7", "8"]),
    ],
    ids=["last", "every", "all"],
)
def test_what_retention_keeps_is_never_merged_away(
    tmp_path: Path, states: dict[int, Any], options: dict[str, Any], files: list[str]
) -> None:
    with lc_store(tmp_path, 3, **options) as store:
        saved(store, *STEPS)
    assert wrong_steps(tmp_path, states) == []
    assert names(tmp_path) == files


def test_a_pinned_step_parts_a_run(tmp_path: Path, states: dict[int, Any]) -> None:
    with lc_store(tmp_path, 3, keep_last=1) as store:
        saved(store, 10, 20)
        store.pin(20)
        saved(store, 30, 40)
        assert names(tmp_path) == ["1", "2", "3", "4"]
        saved(store, 50)
        assert names(tmp_path) == ["1", "2", "5-r1"]
        assert store.info(50).base_step == 20
    assert wrong_steps(tmp_path, states) == []


@given(
    st.integers(2, 4),
    st.integers(1, 3),
    st.sets(st.sampled_from(STEPS), max_size=2),
    st.sets(st.sampled_from(STEPS), max_size=2),
)
@settings(max_examples=8, deadline=None)
def test_any_run_loads_as_if_nothing_was_merged(
    tmp_path_factory: pytest.TempPathFactory,
    states: dict[int, Any],
    period: int,
    keep_last: int,
    pins: set[int],
    reopened: set[int],
) -> None:
    path = tmp_path_factory.mktemp("run") / "store"
    store = lc_store(path, period, keep_last=keep_last)
    for step in STEPS:
        if step in reopened and step > STEPS[0]:
            store.close()
            store = lc_store(path, period, keep_last=keep_last)
            store.load()
        saved(store, step)
        if step in pins:
            store.pin(step)
    store.close()
    assert wrong_steps(path, states) == []
    assert {*STEPS[-keep_last:], *pins} <= set(CheckpointStore(path).steps())
    shutil.rmtree(path)


def test_compact_merges_onto_what_stays_and_delete_closes_the_gap(
    tmp_path: Path, states: dict[int, Any]
) -> None:
    with lc_store(tmp_path) as store:
        saved(store, *STEPS[:5])
        store.delete(40)
        assert (store.info(50).kind, store.info(50).base_step) == ("delta", 30)
        store.pin(10)
    assert wrong_steps(tmp_path, states) == []
    with lc_store(tmp_path, keep_last=1) as store:
        store.load()
        store.compact()
        assert store.steps() == [10, 50]
        assert (store.info(50).kind, store.info(50).base_step) == ("delta", 10)
        saved(store, 60)
        assert store.info(60).kind == "key", "what the object had loaded is not there any more"


# -- what may go wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_every_operation_of_a_merge(tmp_path: Path, scenario: str) -> None:
    operations = report_of("tests.store.super_step_runner", scenario, tmp_path)["operations"]
    assert operations.count("replace") == {"newest": 2, "below": 3}[scenario]
    assert operations.count("unlink") == {"newest": 3, "below": 4}[scenario], "those between and those merged"


class Raising(Lc):
    """A merge that is broken."""

    def merge(self, links: Sequence[StreamSource], base: Reference) -> list[Stream]:
        raise ValueError("no merge today")


class Lying(Lc):
    """A merge that gives back another checkpoint's tensors."""

    def merge(self, links: Sequence[StreamSource], base: Reference) -> list[Stream]:
        return super().merge(links[:-1], base)


class Bulky(Lc):
    """A merge that is right and saves nothing."""

    def merge(self, links: Sequence[StreamSource], base: Reference) -> list[Stream]:
        for link in links:
            base = self.decode(link, base)
        return list(self.rekey(base))


@pytest.mark.parametrize("method", [Raising, Lying])
def test_a_merge_that_fails_or_lies_changes_nothing(
    tmp_path: Path, states: dict[int, Any], method: type[Lc], caplog: pytest.LogCaptureFixture
) -> None:
    own = method(super_step=3)
    assert isinstance(own, Merging)
    with lc_store(tmp_path, method=own, keep_last=1) as store:
        saved(store, *STEPS)
        assert [store.info(step).kind for step in store.steps()] == ["key"] + ["delta"] * 7
    assert names(tmp_path) == [str(number) for number in range(1, 9)]
    assert wrong_steps(tmp_path, states) == []
    warned = "the links below it could not be merged: no merge today" in caplog.text
    assert warned == (method is Raising)


def test_a_merge_that_saves_nothing_is_left_out(tmp_path: Path) -> None:
    """Where there are weights only, one tensor written whole takes more than three links of two bits."""
    with lc_store(tmp_path, method=Bulky(super_step=3), keep_last=1) as store:
        for step in STEPS[:6]:
            store.save(step, {"weight": state_of(step)["model"]["layer0.weight"]}, config=TWO)
    assert names(tmp_path) == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize("failing", ["replace", "fsync", "unlink"])
def test_an_error_of_the_system_leaves_a_whole_store(
    tmp_path: Path, states: dict[int, Any], failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = lc_store(tmp_path, 3, keep_last=2)
    saved(store, *STEPS[:4])
    real, calls = getattr(os, failing), 0
    skipped = {"replace": 2, "fsync": 4, "unlink": 0}[failing]  # those of the save and of the first merge

    def refusing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > skipped:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        call_instead(patch, failing, refusing)
        saved(store, 50)
    assert calls > skipped
    told = "older files could not be removed" if failing == "unlink" else "the checkpoint is saved, but"
    assert told in caplog.text
    assert wrong_steps(tmp_path, states) == []
    saved(store, *STEPS[5:])
    store.close()
    assert wrong_steps(tmp_path, states) == []
    assert leftovers(tmp_path) == []


def test_a_reader_meanwhile_sees_whole_checkpoints_only(tmp_path: Path, states: dict[int, Any]) -> None:
    store = lc_store(tmp_path, 2, keep_last=2)
    saved(store, 10)
    done, wrong = threading.Event(), []

    def read() -> None:
        reader, last = CheckpointStore(tmp_path), 0
        while not done.is_set():
            state = reader.load()
            step = int(state["step"])
            if step < last or not is_same(state, states[step]):
                wrong.append(step)
            last = step

    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in readers:
        thread.start()
    saved(store, *STEPS[1:])
    done.set()
    for thread in readers:
        thread.join()
    assert wrong == []
    assert wrong_steps(tmp_path, states) == []
