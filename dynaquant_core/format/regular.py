"""A file that is known to be a plain file, read by position.

Reads copy: a file that is replaced or cut while it is open cannot change bytes that were already verified,
as it could under a memory map.
"""

from __future__ import annotations

import errno
import os
import stat
from os import PathLike

from dynaquant_core.errors import StorageError, TruncatedError, UnsafePathError

__all__ = ["RegularFile"]


class RegularFile:
    """An open regular file.

    Args:
        path: its last component must not be a link; anything but a regular file is refused without
            reading from it (opening a pipe does not wait for a writer).

    Attributes:
        path: as text, for messages.
        nbytes: size when it was opened.

    Raises:
        UnsafePathError: a link, folder, pipe, socket or device.
        StorageError: the operating system refuses.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise self._refusal(error) from error
        try:
            status = os.fstat(descriptor)
            self._file = os.fdopen(descriptor, "rb", buffering=0) if stat.S_ISREG(status.st_mode) else None
        except OSError as error:
            os.close(descriptor)
            raise self._refusal(error) from error
        if self._file is None:
            os.close(descriptor)
            raise UnsafePathError(f"{self.path} is not a regular file; give the path of a checkpoint file.")
        self.nbytes = status.st_size

    @property
    def descriptor(self) -> int:
        """Its number in this process, the lowest that was free when it was opened."""
        assert self._file is not None
        return self._file.fileno()

    def close(self) -> None:
        """Closes it; again does nothing."""
        if self._file is not None:
            self._file.close()

    def read(self, offset: int, length: int) -> memoryview:
        """Exactly ``length`` bytes at ``offset``; any thread may call it.

        Raises:
            TruncatedError: the file ends before; nothing is allocated where its size already says so.
            StorageError: the operating system refuses.
        """
        if offset + length > self.nbytes:
            raise TruncatedError(f"{self.path} has {self.nbytes} bytes, expected {offset + length}.")
        buffer = memoryview(bytearray(length))
        done = 0
        while done < length:
            got = self._read_some(buffer[done:], offset + done)
            if got == 0:
                raise TruncatedError(f"{self.path} was cut at byte {offset + done} while it was read.")
            done += got
        return buffer

    def _read_some(self, buffer: memoryview, offset: int) -> int:
        assert self._file is not None
        try:
            return os.preadv(self._file.fileno(), [buffer], offset)
        except (OSError, ValueError) as error:
            raise StorageError(f"Cannot read {self.path}: {error}.") from error

    def _refusal(self, error: OSError | ValueError) -> UnsafePathError | StorageError:
        if isinstance(error, ValueError):  # a zero byte in the path
            return UnsafePathError(f"{self.path!r} is not a path: {error}.")
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return UnsafePathError(f"{self.path} is a link or a socket; give the path of a checkpoint file.")
        return StorageError(f"Cannot open {self.path}: {error.strerror}.")
