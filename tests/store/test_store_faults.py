"""Errors of the system at any operation: a save fails whole, says so, and loses nothing (F4, F6)."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dynaquant_core as dq
from dynaquant_core.store import CheckpointStore
from dynaquant_core.store.commit import atomic_file, write_atomically
from tests.store.kit import call_instead, exact_store, filled, is_same, leftovers, small_state

OPERATIONS = ("open", "write", "fsync", "replace", "unlink", "mkdir")
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


class Faults:
    """Lets the n-th operation that changes the disk fail, once or from then on."""

    def __init__(self, number: int, *, at: int, lasting: bool) -> None:
        self.number, self.at, self.lasting = number, at, lasting
        self.count = 0
        self.fired: list[str] = []

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, failing when its turn comes."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return function(*args, **kwargs)
            self.count += 1
            if self.count == self.at or (self.lasting and self.count > self.at):
                self.fired.append(name)
                raise OSError(self.number, os.strerror(self.number))
            return function(*args, **kwargs)

        return wrapper


@contextmanager
def faulty(number: int, *, at: int, lasting: bool) -> Iterator[Faults]:
    """Installs `Faults` for the block."""
    faults = Faults(number, at=at, lasting=lasting)
    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            call_instead(patch, name, faults.wrap(name, getattr(os, name)))
        yield faults


SCENARIOS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "first": ((), {}),
    "delta": ((10, 20, 30), {}),
    "retention": ((10, 20, 30), {"max_chain": 2, "keep_last": 2}),
}


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_error_at_every_operation(tmp_path: Path, scenario: str, number: int, lasting: bool) -> None:
    before, options = SCENARIOS[scenario]
    operation = 0
    while True:
        operation += 1
        path = tmp_path / str(operation)
        if before:
            filled(path, before)
        store = exact_store(path, **options)
        if before:
            store.load()
        fired = save_with_fault(store, number, operation, lasting=lasting)
        check(path, store, before, options)
        if not fired:
            break
    assert operation > 5


def save_with_fault(store: CheckpointStore, number: int, operation: int, *, lasting: bool) -> bool:
    """Saves step 40; whether a fault fired.  It must either be reported, or concern what comes after."""
    state = small_state(40)
    with faulty(number, at=operation, lasting=lasting) as faults:
        error = failure_of(store, state)
    if error is None:
        assert set(faults.fired) <= {"unlink", "fsync"}, "an error of a write was swallowed"
    else:
        assert (error.errno, bool(faults.fired)) == (number, True)
        assert str(store.path) in str(error)
    assert is_same(state, small_state(40))
    return bool(faults.fired)


def failure_of(store: CheckpointStore, state: Any) -> dq.StorageError | None:
    """The error of a save, if it failed."""
    try:
        store.save(40, state)
    except dq.StorageError as error:
        return error
    return None


def check(path: Path, store: CheckpointStore, before: tuple[int, ...], options: dict[str, Any]) -> None:
    """Nothing is lost, and the same object saves the next step as if nothing had happened."""
    steps = set(store.steps())
    assert steps >= ({30} if options.get("keep_last") else set(before))
    assert steps <= {*before, 40}
    assert all(is_same(CheckpointStore(path).load(step), small_state(step)) for step in steps)
    store.save(50, small_state(50))
    store.close()
    assert leftovers(path) == []
    assert is_same(CheckpointStore(path).load(), small_state(50))


def test_short_and_interrupted_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data)[:1001]))
    exact_store(tmp_path).save(1, small_state(1))
    assert is_same(CheckpointStore(tmp_path).load(), small_state(1))


def test_a_failed_fsync_is_never_asked_again_of_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may forget the lost pages and report success the second time."""
    store = exact_store(tmp_path)
    store.save(1, small_state(1))
    real, asked = os.fsync, []

    def fails_once(descriptor: int) -> None:
        asked.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        if len(asked) == 1:
            raise OSError(errno.EIO, "lost")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(dq.StorageError, match="check the disk"):
        store.save(2, small_state(2))
    assert len(asked) == 1
    assert store.steps() == [1]
    store.save(3, small_state(3))
    assert asked[0] not in asked[1:]
    assert is_same(CheckpointStore(tmp_path).load(), small_state(3))


def test_an_error_while_reading_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    last = exact_store(tmp_path).info(30)
    real = os.preadv

    def fails(descriptor: int, buffers: Any, offset: int) -> int:
        if (
            "seq-000003" in str(Path(f"/proc/self/fd/{descriptor}").readlink())
            and offset < last.stored_bytes // 2
        ):
            raise OSError(errno.EIO, "bad sector")
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", fails)
    store = exact_store(tmp_path)
    newest = store.newest()
    assert newest is not None
    assert (newest.step, len(newest.skipped)) == (20, 1)
    with pytest.raises(dq.StorageError):
        store.load(30)


def test_an_error_of_the_encoder_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = exact_store(tmp_path)
    store.save(1, small_state(1))
    saving = store.begin(2, small_state(2))
    sealed = saving.seal(saving.draft())

    def fails(writer: object) -> None:
        raise MemoryError

    monkeypatch.setattr(sealed, "encode", fails)
    with pytest.raises(MemoryError):
        sealed.write()
    assert leftovers(tmp_path) == []
    assert store.save(3, small_state(3)).base_step == 1


def test_no_descriptors_are_left_open(tmp_path: Path) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    store = exact_store(tmp_path)
    store.save(1, small_state(1))
    before = opened()
    for step in range(2, 30):
        store.save(step, small_state(step))
        store.load(step)
        with faulty(errno.EIO, at=2, lasting=False), pytest.raises(dq.StorageError):
            store.save(step, small_state(step))
    assert opened() == before
    store.close()
    assert opened() == before - 1


def test_the_order_in_which_a_save_becomes_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content before name, name before anything that it replaces is removed."""
    path = tmp_path / "new" / "store"
    events: list[str] = []

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            target = (
                Path(f"/proc/self/fd/{args[0]}").readlink() if isinstance(args[0], int) else Path(args[0])
            )
            if name != "open":
                events.append(f"{name} {'file' if '.dq' in target.name else target.name}")
            return function(*args, **kwargs)

        return wrapper

    for name in OPERATIONS:
        call_instead(monkeypatch, name, recorded(name, getattr(os, name)))
    store = exact_store(path, keep_last=1, max_chain=0)
    store.save(1, small_state(1))
    made = ["mkdir new", f"fsync {tmp_path.name}", "mkdir store", "fsync new"]
    committed = ["fsync file", "replace file", "fsync store"]
    assert [event for event in events if event != "write file"] == made + committed
    events.clear()
    store.save(2, small_state(2))
    assert [event for event in events if event != "write file"] == [*committed, "unlink file", "fsync store"]


def test_bytes_of_a_failed_write_never_reach_a_later_file(tmp_path: Path) -> None:
    """A buffer that is collected late must not write: its descriptor's number is another file's by then."""

    def refuse(*arguments: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", refuse)
        with pytest.raises(dq.StorageError) as failure:
            write_atomically(tmp_path / "first", b"old")
    with atomic_file(tmp_path / "second") as file:
        file.write(b"new")
        del failure
        gc.collect()
    assert (tmp_path / "second").read_bytes() == b"new"
