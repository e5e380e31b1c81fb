"""Bad input: each case ends in one clear error of the family, or in the documented fallback."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.format.layout import HEADER_BYTES, MAGIC
from dynaquant_core.store import CheckpointStore
from tests.store.kit import checkpoint_files, exact_store, filled, is_same, leftovers, small_state

# -- places that are no stores -------------------------------------------------------------------


def test_a_store_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("hello")
    with pytest.raises(dq.NotAStoreError, match="is a file"):
        CheckpointStore(path)
    with pytest.raises(dq.DynaQuantError):
        CheckpointStore(path / "below").save(1, {"w": torch.ones(2)})
    assert path.read_text() == "hello"


@pytest.mark.parametrize("exists", [True, False])
def test_an_empty_or_missing_folder(tmp_path: Path, exists: bool) -> None:
    path = tmp_path if exists else tmp_path / "missing"
    store = CheckpointStore(path)
    assert store.newest() is None
    assert store.steps() == []
    assert store.verify() == []
    for read in (store.load, lambda: store.load_into({})):
        with pytest.raises(dq.EmptyStoreError, match="save into it first"):
            read()
    with pytest.raises(dq.CheckpointNotFoundError):
        store.load(3)
    assert path.exists() == exists


def test_a_foreign_folder(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("epoch 1")
    store = exact_store(tmp_path)
    assert store.newest() is None
    with pytest.raises(dq.NotAStoreError, match="holds other files but no checkpoint"):
        store.load()
    store.save(1, small_state(1))  # a run may save into its own output folder
    assert (tmp_path / "train.log").read_text() == "epoch 1"


def test_another_runs_folder(tmp_path: Path) -> None:
    filled(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(dq.StoreNotEmptyError, match="another run"):
        exact_store(tmp_path).save(40, small_state(40))
    assert sorted(tmp_path.iterdir()) == before
    store = exact_store(tmp_path)
    store.load()
    assert store.save(40, small_state(40)).base_step == 30


def test_another_runs_folder_whose_files_are_all_broken(tmp_path: Path) -> None:
    filled(tmp_path, (1,))
    checkpoint_files(tmp_path)[0].write_bytes(b"")
    with pytest.raises(dq.StoreNotEmptyError):
        exact_store(tmp_path).save(2, small_state(2))


# -- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"max_chain": -1},
        {"max_chain": 1.5},
        {"keep_last": 0},
        {"keep_every": True},
        {"keep_within": "many"},
        {"keep_within": "0GB"},
        {"keep_within": -5},
        {"moments": "7bit"},
        {"exact": [3]},
        {"method": 3},
        {"method": {"coder": "paper"}},
        {"method": {"name": "dynaquant", "codre": "paper"}},
    ],
)
def test_options_out_of_range_are_config_errors(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(dq.ConfigError):
        CheckpointStore(tmp_path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [-1, 1.0, True, "3", None, 1 << 64])
def test_a_step_that_is_none(tmp_path: Path, step: object) -> None:
    with pytest.raises(dq.ConfigError, match="step must be"):
        CheckpointStore(tmp_path).save(step, {})  # type: ignore[arg-type]


def test_a_config_of_another_method(tmp_path: Path) -> None:
    with pytest.raises(dq.ConfigError, match="takes a config of type"):
        CheckpointStore(tmp_path).save(1, small_state(1), config=object())
    assert not list(tmp_path.glob("*.dq"))


def test_an_unsupported_object_names_its_path_and_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with pytest.raises(dq.UnsupportedStateError, match=r"model\.hook"):
        CheckpointStore(path).save(1, {"model": {"hook": object()}})
    assert not path.exists()


# -- damaged files -------------------------------------------------------------------------------


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
    for name in names:
        (tmp_path / name).write_text(name)
    store = exact_store(tmp_path, keep_last=1, max_chain=0)
    for step in range(5):
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


@pytest.mark.parametrize("step", ["20", 20.0, True])
def test_a_step_that_is_no_whole_number_is_refused_everywhere(tmp_path: Path, step: object) -> None:
    filled(tmp_path)
    store = exact_store(tmp_path)
    for use in (store.load, store.info, store.delete, store.pin, lambda s: store.load_into({}, s)):
        with pytest.raises(dq.ConfigError, match="whole number"):
            use(step)  # type: ignore[arg-type]
    assert store.steps() == [10, 20, 30]


@pytest.mark.parametrize("deep", [False, True])
def test_verify_names_what_builds_on_a_damaged_file_too(tmp_path: Path, deep: bool) -> None:
    filled(tmp_path, (10, 20, 30, 40, 50), max_chain=2)  # 40 builds on 20, 50 is a key
    flipped_in_a_stream(checkpoint_files(tmp_path)[0])
    problems = exact_store(tmp_path).verify(deep)
    assert [problem.step for problem in problems] == [10, 20, 30, 40]
    assert all(checkpoint_files(tmp_path)[0].name in str(problem) for problem in problems[:2])


@pytest.mark.parametrize("exact", [None, 3, ("a", 3)])
def test_patterns_that_are_no_texts_are_refused(tmp_path: Path, exact: object) -> None:
    with pytest.raises(dq.ConfigError, match="name patterns"):
        CheckpointStore(tmp_path, exact=exact)  # type: ignore[arg-type]


def test_gradients_that_are_no_mapping_are_refused(tmp_path: Path) -> None:
    with pytest.raises(dq.ConfigError, match="gradients must be a mapping"):
        CheckpointStore(tmp_path).save(1, small_state(1), gradients=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_pins_that_are_no_file_hold_up_nothing(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Opening a pipe waits for a writer: a save would stand still for ever."""
    store = exact_store(tmp_path / "store", keep_last=1)
    store.save(1, small_state(1))
    pins = tmp_path / "store" / "pins.json"
    if kind == "pipe":
        os.mkfifo(pins)
    elif kind == "link":
        pins.symlink_to(tmp_path / "elsewhere")
    else:
        pins.mkdir()
    store.save(2, small_state(2))
    assert "pins file" in caplog.text
    assert store.steps() == [1, 2], "nothing is removed while nobody knows what is pinned"
    with pytest.raises(dq.CorruptFileError, match="not a regular file"):
        store.pin(2)
