"""The one commit point: a file appears under its name whole, or not at all.

Bytes go to a temporary file in the same folder, are made durable, and take their name by one rename; then
the folder is made durable.  A failed fsync is final for its file (the kernel may have dropped the pages, and
a second fsync would report success), so the temporary file is removed and the save has failed.
"""

from __future__ import annotations

import fcntl
import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from dynaquant_core.store.disk import guarded, sync_folder
from dynaquant_core.store.names import is_temporary_of, temporary_name

__all__ = ["atomic_file", "atomic_path", "remove_abandoned", "write_atomically"]

#: Bytes gathered before they are handed to the system.
BUFFER_BYTES = 1 << 20

#: Seconds after which a temporary file that nobody has locked is abandoned, not about to be locked.
ABANDONED_AFTER = 60.0


class _Descriptor(io.RawIOBase):
    """A write-only raw file over a descriptor; short writes are finished by the buffer above it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: object) -> int:
        written = os.write(self._descriptor, data)  # type: ignore[arg-type]
        self._at += written
        return written


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Gives a binary file to write; the block's end commits it as ``path``, an error removes it.

    An existing file of that name is replaced.  When the block has ended without an error, content and name
    survive a power loss.

    Args:
        path: the final path; its folder exists.

    Raises:
        StorageError: the system refused; nothing appeared under ``path`` unless only the last step, making
            the folder durable, failed.
    """
    with _committed("write", path) as (_, descriptor):
        raw = _Descriptor(descriptor)
        try:
            buffer = io.BufferedWriter(raw, BUFFER_BYTES)
            yield cast("BinaryIO", buffer)
            buffer.flush()
        finally:
            raw.close()  # else a buffer that still holds bytes writes them when it is collected, into
            # whatever file has this number by then


@contextmanager
def atomic_path(action: str, path: Path) -> Iterator[Path]:
    """The same for what opens its file itself: gives the path of an empty file, to be written in place.

    Args:
        action: what is done to ``path``, for the message.
        path: the final path; its folder exists.

    Raises:
        StorageError: as `atomic_file`.
    """
    with _committed(action, path) as (temporary, _):
        yield temporary
        with temporary.open("rb") as file:  # it may be another file by now, renamed onto ours
            os.fsync(file.fileno())


@contextmanager
def _committed(action: str, path: Path) -> Iterator[tuple[Path, int]]:
    """A temporary file, locked while it is written, which takes the name ``path`` at the end."""
    temporary = path.with_name(temporary_name(path.name))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with guarded(action, path):
        descriptor = os.open(temporary, flags, 0o666)
        try:
            try:
                with suppress(OSError):  # without locks nothing is taken for abandoned either
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield temporary, descriptor
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)


def remove_abandoned(path: Path) -> None:
    """Removes what processes that were killed while they wrote ``path`` left beside it; no file of a store.

    What another process is writing is locked, and stays; so does what cannot be removed, without an error.
    A store does this itself, under its own lock.
    """
    with suppress(OSError):
        beside = [one for one in path.parent.iterdir() if is_temporary_of(one.name, path.name)]
        for one in beside:
            with suppress(OSError):
                _remove_unlocked(one)


def _remove_unlocked(temporary: Path) -> None:
    descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if time.time() - os.fstat(descriptor).st_mtime > ABANDONED_AFTER:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink()
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Commits ``data`` as the whole content of ``path`` (see `atomic_file`)."""
    with atomic_file(path) as file:
        file.write(data)
