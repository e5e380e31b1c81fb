"""Retention against a set model, and on real files: nothing that is needed ever goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dynaquant_core as dq
from dynaquant_core.store import CheckpointStore, catalogue
from dynaquant_core.store.budget import parse_budget
from dynaquant_core.store.catalogue import Entry, read_entry
from dynaquant_core.store.disk import file_identity
from dynaquant_core.store.pins import read_pins, write_pins
from dynaquant_core.store.retention import Policy, current, kept, needed, retired
from tests.store.kit import checkpoint_files, exact_store, filled, is_same, leftovers, small_state

# -- the pure function ---------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """A record of retention."""

    step: int
    order: tuple[int, int]
    digest: str
    base_digest: str | None
    size: int


@pytest.mark.parametrize("policy", [Policy(), Policy(keep_last=390), Policy(keep_within=10**9)])
def test_a_folder_of_many_checkpoints_is_gone_through_a_few_times(policy: Policy) -> None:
    """It is asked after every save: one file after the other must not be held against all of them."""
    looks = 0

    @dataclass(frozen=True, eq=False)
    class Watched(File):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looks
            looks += 1
            return super().__getattribute__(name)

        def __eq__(self, other: object) -> bool:
            nonlocal looks
            looks += 1
            return self is other

        __hash__ = None  # type: ignore[assignment]

    count = 400
    bases = [None if at % 8 == 0 else f"d{at - 1}" for at in range(count)]
    files = [Watched(at, (at, 0), f"d{at}", bases[at], 1) for at in range(count)]
    assert len(kept(files, policy, {3})) >= 391
    assert looks < 40 * count


@st.composite
def folders(draw: st.DrawFn) -> list[File]:
    """Any folder a run may leave: steps repeat, bases are any older file or gone."""
    files: list[File] = []
    for sequence in range(draw(st.integers(1, 12))):
        base = draw(st.sampled_from([None, None, "gone", *(file.digest for file in files)]))
        step, size = draw(st.integers(0, 6)), draw(st.integers(1, 9))
        files.append(File(step, (sequence, draw(st.integers(0, 2))), f"d{sequence}", base, size))
    return files


policies = st.builds(
    Policy,
    st.none() | st.integers(1, 4),
    st.none() | st.integers(1, 3),
    st.none() | st.integers(1, 40),
)


@given(folders(), policies, st.sets(st.integers(0, 6), max_size=2))
@settings(max_examples=400, deadline=None)
def test_what_stays_can_be_read_and_is_what_the_policy_promises(
    files: list[File], policy: Policy, pins: set[int]
) -> None:
    gone = retired(files, policy, pins)
    stay = [file for file in files if file not in gone]
    here = {file.digest for file in stay}
    newest = max(files, key=lambda file: file.order)
    assert newest in stay
    assert all(file in stay for step, file in current(files).items() if step in pins)
    all_digests = {file.digest for file in files}
    assert all(file.base_digest in here for file in stay if file.base_digest in all_digests)
    # No step goes back to an older version of itself.
    assert all(current(stay)[file.step] == current(files)[file.step] for file in stay)
    if policy.keep_within is None:
        ranked = sorted(current(files).values(), key=lambda file: file.order, reverse=True)
        assert set(ranked[: policy.keep_last or 0]) <= set(stay)
        assert all(
            file in stay for file in ranked if policy.keep_every and file.step % policy.keep_every == 0
        )
    else:
        must = [newest, *(file for step, file in current(files).items() if step in pins)]
        least = sum(file.size for file in needed(must, files).values())
        assert sum(file.size for file in stay) <= max(policy.keep_within, least)
    # Removing in order, every moment in between is sound too.
    for done in range(len(gone)):
        rest = {file.digest for file in [*stay, *gone[done:]]}
        assert all(
            file.base_digest in rest
            for file in files
            if file.digest in rest and file.base_digest in all_digests
        )


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 50), st.integers(1, 3))
def test_the_first_at_or_after_each_multiple_stays_however_saves_fall(
    gaps: list[int], every: int, last: int
) -> None:
    """Saves that are due by time meet no multiple, and none was kept of a run of days."""
    policy, steps = Policy(keep_last=last, keep_every=every), list(accumulate(gaps))
    files: list[File] = []
    for number, step in enumerate(steps):
        files.append(File(step, (number, 0), f"d{number}", None, 1))
        files = [file for file in files if file not in retired(files, policy, ())]
    multiples = range(every, steps[-1] + 1, every)
    first = {next(step for step in steps if step >= multiple) for multiple in multiples}
    wanted = {step for step in first if any(step - every < multiple <= step for multiple in multiples)}
    assert {file.step for file in files} == wanted | set(steps[-last:])
    whole = [File(step, (number, 0), f"d{number}", None, 1) for number, step in enumerate(steps)]
    assert {file.step for file in kept(whole, policy, ())} == {file.step for file in files}


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40))
def test_where_each_multiple_was_saved_they_are_what_stays(interval: int, times: int, count: int) -> None:
    files = [File(step * interval, (step, 0), f"d{step}", None, 1) for step in range(count)]
    stay = {file.step for file in kept(files, Policy(keep_every=interval * times), ())}
    newest = (count - 1) * interval
    assert stay == {newest, *(step for step in range(0, newest + 1, interval * times))}


def test_a_checkpoint_that_is_doubted_is_not_the_first_of_any() -> None:
    files = [File(step, (step, 0), f"d{step}", None, 1) for step in (11, 14, 17, 30)]
    stay = {file.step for file in kept(files, Policy(keep_every=10), (), doubted={"d11"})}
    assert stay == {14, 30}


@given(folders(), st.sets(st.integers(0, 6)))
@settings(max_examples=100, deadline=None)
def test_without_a_policy_only_superseded_files_go(files: list[File], pins: set[int]) -> None:
    gone = retired(files, Policy(), pins)
    assert all(current(files)[file.step] != file for file in gone)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1kB", 1000),
        ("2 MiB", 2 << 20),
        ("0.5GB", 5 * 10**8),
        (7, 7),
        ("12", 12),
        (1e3, 1000),
        (1e16, 10**16),
    ],
)
def test_budgets(text: Any, expected: int) -> None:
    assert parse_budget(text) == expected


# -- real files ----------------------------------------------------------------------------------


def test_keep_last_keeps_what_the_last_ones_need(tmp_path: Path) -> None:
    store = exact_store(tmp_path, keep_last=2, max_chain=3)
    for step in range(1, 10):
        store.save(step, small_state(step))
        assert {step, max(1, step - 1)} <= set(store.steps())
        assert store.verify() == []
    assert store.steps() == [7, 8, 9]  # 7 is a key


def test_keep_every_and_keep_last(tmp_path: Path) -> None:
    store = exact_store(tmp_path, keep_last=1, keep_every=4, max_chain=0)
    for step in range(1, 11):
        store.save(step, small_state(step))
    assert store.steps() == [4, 8, 10]


def test_keep_within_a_budget(tmp_path: Path) -> None:
    size = exact_store(tmp_path / "one").save(1, small_state(1)).stored_bytes
    budget = int(3.5 * size)
    store = exact_store(tmp_path / "many", keep_within=budget, max_chain=0)
    for step in range(1, 9):
        store.save(step, small_state(step))
        used = sum(file.stat().st_size for file in checkpoint_files(tmp_path / "many"))
        assert used <= budget
    assert store.steps() == [6, 7, 8]


@pytest.mark.parametrize("room", [1.4, 2.6, 3.4])
def test_a_chain_that_outgrows_the_budget_is_followed_by_a_key(tmp_path: Path, room: float) -> None:
    """All that a delta builds on must stay, so the budget would refuse this save and every one after it."""
    size = exact_store(tmp_path / "one").save(1, small_state(1)).stored_bytes
    store = exact_store(tmp_path / "many", keep_within=int(room * size))
    for step in range(1, 30):
        store.save(step, small_state(step))
        used = sum(file.stat().st_size for file in checkpoint_files(tmp_path / "many"))
        assert used <= room * size
    assert store.verify(deep=True) == []
    assert is_same(exact_store(tmp_path / "many").load(), small_state(29))


def test_a_budget_that_has_room_for_a_chain_gets_one(tmp_path: Path) -> None:
    size = exact_store(tmp_path / "one").save(1, small_state(1)).stored_bytes
    store = exact_store(tmp_path / "many", keep_within=12 * size, max_chain=4)
    kinds = [store.save(step, small_state(step)).kind for step in range(1, 6)]
    assert kinds == ["key", "delta", "delta", "delta", "delta"]


def test_a_delta_that_fits_is_tried_where_no_key_would(tmp_path: Path) -> None:
    """A pinned chain takes nearly all of the budget; what did not change costs next to nothing."""
    size = exact_store(tmp_path / "one").save(1, small_state(1)).stored_bytes
    store = exact_store(tmp_path / "many", keep_within=int(1.5 * size))
    store.save(1, small_state(1))
    store.pin(1)
    assert store.save(2, small_state(1)).kind == "delta"


def test_pins_outlive_everything(tmp_path: Path) -> None:
    filled(tmp_path, (1, 2, 3), max_chain=0)
    with CheckpointStore(tmp_path) as one:
        one.pin(2)
    store = exact_store(tmp_path, keep_last=1, max_chain=0)
    store.load()
    store.save(4, small_state(4))
    assert store.steps() == [2, 4]
    store.unpin(2)
    store.save(5, small_state(5))
    assert store.steps() == [5]
    with pytest.raises(dq.CheckpointNotFoundError):
        store.pin(2)


@pytest.mark.parametrize("policy", [{"keep_last": 1}, {"keep_within": "100kB"}])
def test_damaged_pins_stop_retention_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, policy: dict[str, Any]
) -> None:
    store = exact_store(tmp_path, max_chain=0, **policy)
    store.save(1, small_state(1))
    store.pin(1)
    (tmp_path / "pins.json").write_text('{"pins": "all"}')
    for step in (2, 3, 4, 5, 6):
        store.save(step, small_state(step))
    assert store.steps() == [1, 2, 3, 4, 5, 6]
    assert "damaged" in caplog.text
    with pytest.raises(dq.CorruptFileError, match="delete it to unpin all"):
        store.pin(2)


def test_delete_rebases_what_builds_on_the_step(tmp_path: Path) -> None:
    filled(tmp_path, (1, 2, 3, 4))
    store = exact_store(tmp_path)
    for gone in (1, 3, 2):
        store.delete(gone)
        assert gone not in store.steps()
        assert store.verify(deep=True) == []
        assert all(is_same(store.load(step), small_state(step)) for step in store.steps())
    with pytest.raises(dq.CheckpointNotFoundError, match="nearest are 4"):
        store.delete(2)
    assert len(checkpoint_files(tmp_path)) == 1


def test_delete_of_a_step_saved_twice_does_not_bring_the_first_back(tmp_path: Path) -> None:
    filled(tmp_path)
    store = exact_store(tmp_path)
    store.load(10)
    store.save(20, small_state(20, seed=9))
    store.delete(20)
    assert store.steps() == [10, 30]
    assert is_same(store.load(30), small_state(30))


def test_delete_removes_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    filled(tmp_path)
    checkpoint_files(tmp_path)[1].write_bytes(b"broken")
    store = exact_store(tmp_path)
    assert len(store.verify()) == 2
    store.delete(20)
    assert [problem.step for problem in store.verify()] == [30]
    store.delete(30)
    assert store.verify() == []
    assert store.steps() == [10]


def test_pins_are_written_only_as_they_can_be_read(tmp_path: Path) -> None:
    many = range(10**6 - 200_000, 10**6)
    write_pins(tmp_path, many)
    assert read_pins(tmp_path) == frozenset(many)
    with pytest.raises(dq.StorageError, match="unpin some steps"):
        write_pins(tmp_path, range(10**7, 10**7 + 2 * 10**6))
    assert read_pins(tmp_path) == frozenset(many)


def test_a_checkpoint_that_a_restore_passed_over_does_not_stay_in_the_place_of_one_that_loads(
    tmp_path: Path,
) -> None:
    filled(tmp_path, max_chain=0)
    newest = checkpoint_files(tmp_path)[-1]
    damaged = bytearray(newest.read_bytes())
    damaged[500] ^= 1
    newest.write_bytes(damaged)
    store = exact_store(tmp_path, max_chain=0, keep_last=2)
    store.resume()
    assert [problem.step for problem in store.loaded.skipped] == [30]
    store.save(25, small_state(25))
    assert store.steps() == [20, 25]
    assert is_same(store.load(20), small_state(20))


def test_what_was_passed_over_counts_again_once_it_was_read(tmp_path: Path) -> None:
    """A disk that did not answer for a moment is no damaged file."""
    filled(tmp_path, max_chain=0)
    newest = checkpoint_files(tmp_path)[-1]
    whole = newest.read_bytes()
    newest.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    store = exact_store(tmp_path, max_chain=0, keep_last=2)
    store.resume()
    newest.write_bytes(whole)
    store.resume()
    assert store.loaded.step == 30
    store.save(35, small_state(35))
    assert store.steps() == [30, 35]


def test_no_save_overruns_a_budget_beside_a_pin(tmp_path: Path) -> None:
    """How large a delta of exact moments comes out nobody knows before it is written."""
    budget, said = 600_000, 0
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(256, 256, generator=generator)
    store = CheckpointStore(tmp_path, moments="exact", keep_within=budget)
    for step in range(1, 7):
        weights = weights + 0.01 * torch.randn(256, 256, generator=generator)
        moments = {"exp_avg": weights * 0.1, "exp_avg_sq": weights.square()}
        before = checkpoint_files(tmp_path)
        try:
            store.save(step, {"model": {"w": weights}, "optimizer": {"state": {"w": moments}}})
        except dq.BudgetError as error:
            assert "keep_within allows 600,000" in str(error)  # noqa: PT017 - some of the saves
            assert checkpoint_files(tmp_path) == before
            said += 1
        if step == 1:
            store.pin(1)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= budget + 1000  # lock and pins
    assert said == 5
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("options", [{}, {"keep_every": 1}])
def test_a_save_looks_at_each_file_once_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """A run that keeps all its checkpoints has thousands, and on a network each look takes a while."""
    looks: Counter[str] = Counter()
    with exact_store(tmp_path, max_chain=2, **options) as store:
        for step in range(1, 31):
            store.save(step, {"w": torch.full((8,), float(step))})

        def identity(path: str | Path) -> tuple[int, int, int]:
            looks[str(path)] += 1
            return file_identity(path)

        def read(path: Path) -> Entry:
            looks["read"] += 1
            return read_entry(path)

        monkeypatch.setattr(catalogue, "file_identity", identity)
        monkeypatch.setattr(catalogue, "read_entry", read)
        store.save(31, {"w": torch.ones(8)})
    assert looks.pop("read", 0) <= 1
    assert set(looks.values()) == {1}
    assert CheckpointStore(tmp_path).steps() == list(range(1, 32))
