"""The one commit point: a file appears under its name whole, or not at all.

Bytes go to a temporary file in the same folder, are made durable, and take their name by one rename; then
the folder is made durable.  A failed fsync is final for its file (the kernel may have dropped the pages, and
a second fsync would report success), so the temporary file is removed and the save has failed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from dynaquant_core.store.disk import guarded, sync_folder
from dynaquant_core.store.names import temporary_name

__all__ = ["atomic_file", "write_atomically"]

#: Bytes gathered before they are handed to the system.
BUFFER_BYTES = 1 << 20


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
    temporary = path.with_name(temporary_name(path.name))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with guarded("write", path):
        descriptor = os.open(temporary, flags, 0o666)
        raw = _Descriptor(descriptor)
        try:
            try:
                buffer = io.BufferedWriter(raw, BUFFER_BYTES)
                yield cast("BinaryIO", buffer)
                buffer.flush()
                os.fsync(descriptor)
            finally:
                raw.close()  # else a buffer that still holds bytes writes them when it is collected, into
                os.close(descriptor)  # whatever file has this number by then
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Commits ``data`` as the whole content of ``path`` (see `atomic_file`)."""
    with atomic_file(path) as file:
        file.write(data)
