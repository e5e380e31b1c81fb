"""Damaged files: what is whole still loads, and what is not is named."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dynaquant_core as dq
from dynaquant_core.format.layout import HEADER_BYTES, MAGIC
from tests.format.samples import resealed
from tests.store.kit import checkpoint_files, exact_store, filled, is_same, leftovers, small_state


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def flipped_in_a_stream(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 50] ^= 0x10
    path.write_bytes(data)


def flipped_in_the_index(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-60] ^= 0x10
    path.write_bytes(data)


def from_the_future(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(MAGIC)] = 200
    path.write_bytes(data)


def replaced_by_text(path: Path) -> None:
    path.write_text("not a checkpoint " * 100)


def replaced_by_a_link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [
    truncated, emptied, flipped_in_a_stream, flipped_in_the_index, from_the_future, replaced_by_text,
    replaced_by_a_link, replaced_by_a_folder,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_falls_back_and_says_so(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path)
    last = checkpoint_files(tmp_path)[-1]
    damage(last)
    store = exact_store(tmp_path)
    newest = store.newest()
    assert newest is not None
    assert (newest.step, [item.name for item in newest.skipped]) == (20, [last.name])
    assert newest.skipped[0].step == 30
    with caplog.at_level(logging.WARNING):
        assert is_same(store.load(), small_state(20))
    assert last.name in caplog.text
    assert store.loaded is not None
    assert [item.name for item in store.loaded.skipped] == [last.name]
    with pytest.raises((dq.CorruptFileError, dq.UnsafePathError)):
        exact_store(tmp_path).load(30)  # an explicit step never falls back
    assert [problem.name for problem in store.verify()] == [last.name]
    info = store.save(40, small_state(40))  # and training goes on from what was loaded
    assert (info.base_step, info.sequence) == (20, 4)
    assert is_same(exact_store(tmp_path).load(), small_state(40))


LONG = ["i", "0x" + "f" * 5000]  # Python refuses to print it


def a_letter_that_is_none(document: dict[str, Any]) -> None:
    document["tree"]["note"] = ["s", "<U1", "ffffffff"]


def a_step_of_thousands_of_digits(document: dict[str, Any]) -> None:
    document["meta"]["step"] = LONG


def a_base_of_thousands_of_digits(document: dict[str, Any]) -> None:
    document["meta"]["base"] = ["l", LONG]


def a_setting_of_thousands_of_digits(document: dict[str, Any]) -> None:
    document["meta"]["parts"]["exact"]["config"] = {"bins": LONG}


def a_report_of_thousands_of_digits(document: dict[str, Any]) -> None:
    document["meta"]["report"] = {"degradation": LONG}


CRAFTED = [
    a_letter_that_is_none, a_step_of_thousands_of_digits, a_base_of_thousands_of_digits,
    a_setting_of_thousands_of_digits, a_report_of_thousands_of_digits,
]  # fmt: skip


@pytest.mark.parametrize("change", CRAFTED)
def test_no_index_whose_checksum_is_right_makes_the_others_unreadable(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    filled(tmp_path)
    last = checkpoint_files(tmp_path)[-1]
    last.write_bytes(resealed(last.read_bytes(), change))
    store = exact_store(tmp_path)
    assert store.steps() == [10, 20]
    assert is_same(store.load(), small_state(20))
    assert is_same(store.load(10), small_state(10))
    assert [problem.name for problem in store.verify()] == [last.name]
    newest = store.newest()
    assert newest is not None
    assert (newest.step, [item.name for item in newest.skipped]) == (20, [last.name])
    with pytest.raises(dq.CorruptFileError):
        dq.load_file(last)
    store.save(40, small_state(40))
    assert store.steps() == [10, 20, 40]


def test_whole_numbers_of_any_length_come_back(tmp_path: Path) -> None:
    state = {"primes": [2**127 - 1, -(10**5000)], "seed": 2**200, "w": small_state(1)["frozen"]}
    with exact_store(tmp_path) as store:
        store.save(1, state)
    assert is_same(exact_store(tmp_path).load(), state)


@pytest.mark.parametrize("damage", [truncated, flipped_in_a_stream, flipped_in_the_index, Path.unlink])
@pytest.mark.parametrize("link", range(3))
def test_a_broken_link_breaks_only_what_stands_on_it(
    tmp_path: Path, damage: Callable[[Path], None], link: int
) -> None:
    filled(tmp_path, (10, 20, 30, 40, 50), max_chain=2)  # 40 builds on 20, 50 is a key
    damage(checkpoint_files(tmp_path)[link])
    store = exact_store(tmp_path)
    for number, step in enumerate((10, 20, 30)):
        if number < link:
            assert is_same(store.load(step), small_state(step))
        else:
            with pytest.raises((dq.CorruptFileError, dq.MissingBaseError, dq.CheckpointNotFoundError)):
                store.load(step)
    if link == 2:
        assert is_same(store.load(40), small_state(40))
    assert is_same(store.load(50), small_state(50))
    assert len({problem.name for problem in store.verify(deep=True)}) >= 2 - link


def test_a_damaged_save_of_a_step_is_not_answered_with_the_one_it_superseded(tmp_path: Path) -> None:
    filled(tmp_path)
    store = exact_store(tmp_path)
    store.load(10)
    store.save(20, small_state(20, seed=9))
    flipped_in_the_index(checkpoint_files(tmp_path)[-1])
    with pytest.raises(dq.CorruptFileError):
        exact_store(tmp_path).load(20)
    assert is_same(exact_store(tmp_path).load(), small_state(30))


def test_a_missing_base_is_named(tmp_path: Path) -> None:
    filled(tmp_path)
    checkpoint_files(tmp_path)[0].unlink()
    with pytest.raises(dq.MissingBaseError, match="checkpoint of step 10"):
        exact_store(tmp_path).load(20)
    with pytest.raises(dq.EmptyStoreError, match="checkpoint of step 10"):
        exact_store(tmp_path).load()
    with pytest.raises(dq.EmptyStoreError):
        exact_store(tmp_path).newest()


def test_a_base_with_the_right_name_and_other_content_is_not_a_base(tmp_path: Path) -> None:
    filled(tmp_path / "a")
    filled(tmp_path / "b", (11, 21, 31))
    ours, theirs = checkpoint_files(tmp_path / "a"), checkpoint_files(tmp_path / "b")
    shutil.copy(theirs[0], ours[0])
    with pytest.raises(dq.MissingBaseError):
        exact_store(tmp_path / "a").load(30)


def test_swapped_files_are_told_by_their_index(tmp_path: Path) -> None:
    filled(tmp_path)
    first, second, _ = checkpoint_files(tmp_path)
    spare = tmp_path / "spare"
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    store = exact_store(tmp_path)
    assert all(is_same(store.load(step), small_state(step)) for step in (10, 20, 30))


@pytest.mark.parametrize("damage", [truncated, flipped_in_a_stream, Path.unlink])
def test_a_base_that_broke_after_it_was_saved_gives_a_key(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    store = exact_store(tmp_path)
    store.save(1, small_state(1))
    store.save(2, small_state(2))
    damage(checkpoint_files(tmp_path)[0])
    assert store.save(3, small_state(3)).kind == "key"
    assert "damaged" in caplog.text
    assert is_same(exact_store(tmp_path).load(), small_state(3))


def test_a_base_that_was_only_touched_is_still_a_base(tmp_path: Path) -> None:
    store = exact_store(tmp_path)
    store.save(1, small_state(1))
    os.utime(checkpoint_files(tmp_path)[0], (1, 1))
    assert store.save(2, small_state(2)).kind == "delta"


def test_a_name_that_claims_the_last_sequence_is_refused_and_not_followed(tmp_path: Path) -> None:
    store = exact_store(tmp_path)
    store.save(1, small_state(1))
    (tmp_path / f"step-000000001-seq-{(1 << 63) - 1}.dq").write_bytes(b"")
    with pytest.raises(dq.LimitError, match="remove it"):
        store.save(2, small_state(2))
    assert is_same(exact_store(tmp_path).load(), small_state(1))


def test_foreign_files_are_never_touched(tmp_path: Path) -> None:
    names = ["notes.txt", "step-1.dq", "best.dq", "model.dq.tmp-1", "step-000000001-seq-000001.dq.bak"]
    store = exact_store(tmp_path, keep_last=1, max_chain=0)
    store.save(0, small_state(0))
    for name in names:
        (tmp_path / name).write_text(name)
    for step in range(1, 5):
        store.save(step, small_state(step))
    assert all((tmp_path / name).read_text() == name for name in names)
    assert store.steps() == [4]


def test_leftovers_are_removed_by_the_next_save(tmp_path: Path) -> None:
    filled(tmp_path)
    leftover = tmp_path / f"step-000000040-seq-000004.dq.tmp-{'0' * 32}"
    leftover.write_bytes(b"half a checkpoint")
    store = exact_store(tmp_path)
    assert store.steps() == [10, 20, 30]
    assert is_same(store.load(), small_state(30))
    assert leftovers(tmp_path)
    store.save(40, small_state(40))
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("deep", [False, True])
def test_verify_names_what_builds_on_a_damaged_file_too(tmp_path: Path, deep: bool) -> None:
    filled(tmp_path, (10, 20, 30, 40, 50), max_chain=2)  # 40 builds on 20, 50 is a key
    flipped_in_a_stream(checkpoint_files(tmp_path)[0])
    problems = exact_store(tmp_path).verify(deep)
    assert [problem.step for problem in problems] == [10, 20, 30, 40]
    assert all(checkpoint_files(tmp_path)[0].name in str(problem) for problem in problems[:2])
