"""Where files go that no new one stands for, the last checkpoint that loads is not among them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dynaquant_core as dq
from dynaquant_core.errors import CorruptFileError, StorageError
from dynaquant_core.format import FileReader
from dynaquant_core.store import CheckpointStore
from tests.store.kit import call_instead, checkpoint_files, exact_store, filled, is_same, small_state


def damage(path: Path, part: str = "weights") -> None:
    """One bit of what is stored of a part; the index stays sound."""
    with FileReader(path) as reader:
        parts = [stream.part for stream in reader.index.streams]
        place = 12 + sum(stream.nbytes for stream in reader.index.streams[: parts.index(part)])
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def full_disk(patch: pytest.MonkeyPatch) -> None:
    """From now on every disk has one block left."""
    call_instead(patch, "statvfs", lambda path: SimpleNamespace(f_bavail=1, f_frsize=4096, f_blocks=100))


def is_loaded(path: Path, step: int) -> bool:
    return is_same(exact_store(path).load(), small_state(step))


@pytest.mark.parametrize("tried", [False, True])
@pytest.mark.parametrize("base", [False, True])
def test_a_save_that_finds_no_room_leaves_what_the_run_went_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: bool, base: bool
) -> None:
    """The newest had rotted: everything else went, and then the save failed all the same."""
    filled(tmp_path, max_chain=0)
    damage(checkpoint_files(tmp_path)[-1])
    store = exact_store(tmp_path, max_chain=8 if base else 0, keep_last=1)
    if tried:
        with pytest.raises(CorruptFileError):
            store.resume(30)
    store.resume(20)
    with monkeypatch.context() as patch:
        full_disk(patch)
        with pytest.raises(StorageError, match="are free"):
            store.save(40, small_state(40))
    assert is_loaded(tmp_path, 20)
    store.save(40, small_state(40))
    assert is_loaded(tmp_path, 40)


def test_a_run_that_began_elsewhere_finds_no_room_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked at one tensor of an old checkpoint, and never read what is newest."""
    filled(tmp_path, max_chain=0)
    damage(checkpoint_files(tmp_path)[-1])
    store = exact_store(tmp_path, max_chain=0, keep_last=1)
    store.load(10, names="frozen")
    full_disk(monkeypatch)
    with pytest.raises(StorageError, match="are free"):
        store.save(40, small_state(40))
    assert is_loaded(tmp_path, 20)


def test_room_is_still_made_where_the_newest_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, max_chain=0)
    store = exact_store(tmp_path, max_chain=0, keep_last=1)
    store.resume()
    full_disk(monkeypatch)
    with pytest.raises(StorageError, match="are free"):
        store.save(40, small_state(40))
    assert store.steps() == [30]


@pytest.mark.parametrize("read", ["load", "load_into", "names", "export", "verify", "newest"])
def test_what_an_explicit_read_failed_on_does_not_stay_in_the_place_of_what_loads(
    tmp_path: Path, read: str
) -> None:
    filled(tmp_path, max_chain=0)
    damage(checkpoint_files(tmp_path)[-1])
    store = exact_store(tmp_path, max_chain=0, keep_last=2)
    reads: dict[str, Any] = {
        "load": lambda: store.load(30),
        "load_into": lambda: store.load_into(small_state(30), 30),
        "names": lambda: store.load(30, names="model"),
        "export": lambda: store.export(30, tmp_path.parent / f"{tmp_path.name}.pt"),
    }
    if read in reads:
        with pytest.raises(CorruptFileError):
            reads[read]()
    else:
        assert getattr(store, read)()
    store.resume(20)
    store.save(40, small_state(40))
    assert store.steps() == [20, 40]


def test_a_part_that_loads_does_not_vouch_for_the_whole(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, max_chain=0) as first:
        for step in (10, 20, 30):
            first.save(step, small_state(step))
    damage(checkpoint_files(tmp_path)[-1], "moments")
    store = CheckpointStore(tmp_path, max_chain=0, keep_last=2)
    store.resume()
    assert store.load(30, names="model")["model"]["layer0.weight"].shape == (24, 32)
    store.save(40, small_state(40))
    assert store.steps() == [20, 40]


@pytest.mark.parametrize("max_chain", [0, 8])
def test_compact_does_not_remove_the_last_that_loads(tmp_path: Path, max_chain: int) -> None:
    """Nobody had read anything: the newest by its index was kept, and it was damaged."""
    filled(tmp_path, (1, 2), max_chain=max_chain)
    with exact_store(tmp_path, max_chain=0) as store:
        store.load()
        store.save(3, small_state(3))
    damage(checkpoint_files(tmp_path)[-1])
    assert exact_store(tmp_path, keep_last=1).compact() == [3]
    assert is_loaded(tmp_path, 2)
    assert CheckpointStore(tmp_path).steps() == [2, 3]


def test_compact_keeps_as_many_that_load_as_it_was_asked_for(tmp_path: Path) -> None:
    filled(tmp_path, (1, 2, 3, 4), max_chain=0)
    damage(checkpoint_files(tmp_path)[2])
    assert exact_store(tmp_path, keep_last=2).compact() == [3]
    assert CheckpointStore(tmp_path).steps() == [2, 3, 4]


def test_compact_keeps_a_save_of_a_step_that_a_damaged_one_superseded(
    tmp_path: Path,
) -> None:
    """A process that was killed between its commit and what goes then leaves both."""
    filled(tmp_path, (1,), max_chain=0)
    (first,) = checkpoint_files(tmp_path)
    whole = first.read_bytes()
    with exact_store(tmp_path, max_chain=0) as store:
        store.load()
        store.save(1, small_state(5))
    damage(checkpoint_files(tmp_path)[-1])
    first.write_bytes(whole)
    assert exact_store(tmp_path).compact() == [1]
    assert is_loaded(tmp_path, 1)


def test_compact_removes_nothing_where_nothing_is_whole(tmp_path: Path) -> None:
    filled(tmp_path, max_chain=0)
    for file in checkpoint_files(tmp_path):
        damage(file)
    store = exact_store(tmp_path, keep_last=1)
    assert sorted(store.compact()) == [20, 30]  # the last has nothing older that could go for it
    assert sorted(store.compact()) == [10, 20, 30]
    assert len(checkpoint_files(tmp_path)) == 3


def test_compact_removes_nothing_for_a_disk_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest may be whole, so nothing is to be kept in its place; nor may it go unread."""
    filled(tmp_path, max_chain=0)
    newest = checkpoint_files(tmp_path)[-1]
    store = exact_store(tmp_path, keep_last=1)
    assert store.steps() == [10, 20, 30]
    real = os.open

    def refusing(path: Any, *rest: Any, **more: Any) -> int:
        if str(path) == str(newest):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *rest, **more)

    with monkeypatch.context() as patch:
        call_instead(patch, "open", refusing)
        with pytest.raises(dq.StorageError, match="Input/output error"):
            store.compact()
    assert store.steps() == [10, 20, 30]
    assert store.compact() == []
    assert store.steps() == [30]
