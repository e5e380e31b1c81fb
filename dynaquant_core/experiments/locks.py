"""Folders of experiments that one process at a time writes into: its lock dies with it, wherever it runs.

A process number says nothing of a process on another node, or in another container, that shares the folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dynaquant_core.errors import StorageError

__all__ = ["alone", "own_folder", "sweep"]

LOCK = "lock"

#: Names of the folders that this process made: the log of a failure is worth keeping until it has ended.
_OWN: set[str] = set()


@contextmanager
def alone(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """The right to write into a recording; waits while another process has it, which dies with that process.

    Args:
        folder: of the recording; it exists.
        waiting: called once where there is somebody to wait for.

    Raises:
        StorageError: the system refuses.
    """
    path, said = folder / LOCK, False
    try:
        handle = _opened(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}.") from None
    try:
        while not _locked(handle):
            if not said:
                waiting()
                said = True
            time.sleep(0.2)
        yield
    finally:
        os.close(handle)


@contextmanager
def own_folder(place: Path) -> Iterator[Path]:
    """A new folder to make something in, which no `sweep` takes for left behind until the block ends.

    Args:
        place: where what is made will be moved to; the new folder lies beside it, ``NAME.`` and a name that
            nobody has had.

    Raises:
        StorageError: the system refuses.
    """
    folder, handle = _taken(place)
    try:
        yield folder
    finally:
        os.close(handle)


def sweep(place: Path) -> None:
    """Removes what processes that have died left in folders of their own beside ``place``."""
    for folder in place.parent.glob(f"{place.name}.*"):
        if folder.name not in _OWN:
            with suppress(OSError):  # not ours to remove, or gone meanwhile
                _remove_left(folder)


def _remove_left(folder: Path) -> None:
    handle = _opened(folder / LOCK)
    try:
        left = _locked(handle)
        if left:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)
    if left and folder.exists():  # network file systems keep what is open
        folder.rmdir()


def _taken(place: Path) -> tuple[Path, int]:
    """A new folder and its lock, which a sweep may come before; it finds an empty folder then."""
    while True:
        folder = place.with_name(f"{place.name}.{uuid.uuid4().hex}")
        _OWN.add(folder.name)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise StorageError(f"{folder}: cannot be made: {error.strerror}.") from error
        try:
            handle = _opened(folder / LOCK)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"{folder / LOCK}: cannot be written: {error.strerror}.") from error
        if _locked(handle) and os.fstat(handle).st_nlink:
            return folder, handle
        os.close(handle)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _locked(handle: int) -> bool:
    """Record locks, unlike `flock`, do not pass to children.

    Raises:
        StorageError: the file system has none.
    """
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        raise StorageError(
            f"a folder of an experiment cannot be locked ({error.strerror}); work on a file system that can."
        ) from error
    return True
