"""One writer a store: a lock that dies with its process.

A POSIX record lock is used: unlike `flock` it is not inherited by forked data loaders, so a killed training
process lets go of it even while its children live on, and the system names the holder's process id.  Record
locks do not exclude threads of one process; the table below does.  A store's lock file stays; where it is
removed it is so by its holder, and who then holds a file without a name asks again.

A record lock is lost when its process closes any descriptor of the file, as a copy of the folder does
(`shutil.copytree`).  So the system is asked again at every `acquire`: another writer may have come.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from contextlib import suppress
from pathlib import Path

from dynaquant_core.errors import StoreLockedError
from dynaquant_core.store.disk import guarded
from dynaquant_core.store.names import LOCK_FILE
from dynaquant_core.threads import turn

__all__ = ["WriterLock"]

#: struct flock on Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


class _Held:
    """The descriptor of one lock file that this process holds, and the object that writes through it."""

    def __init__(self, descriptor: int, owner: WriterLock) -> None:
        self.descriptor = descriptor
        self.process = os.getpid()
        self.owner = weakref.ref(owner)


#: (device, inode) of each lock file that this process holds.
_TABLE: dict[tuple[int, int], _Held] = {}
_TABLE_GUARD = turn()  # may be taken again: a collected lock's finalizer may run inside a guarded block


class WriterLock:
    """The right to write into one store.

    Within a process the right belongs to one object at a time.  An object that has just loaded from the store
    may take it over from one that is idle (a run that was given up and restored in the same process); the
    other's next save then raises.

    Args:
        folder: the store; it exists when `acquire` is called.
        what: the folder is, for the message.

    Attributes:
        busy: set while its owner writes; a busy owner is never deprived.
    """

    def __init__(self, folder: Path, what: str = "store") -> None:
        self._path = folder / LOCK_FILE
        self._what = what
        self.busy = False
        self._finalizer = weakref.finalize(self, _let_go, os.getpid())

    def acquire(self, *, take_over: bool) -> None:
        """Takes the right to write, or keeps it.

        Args:
            take_over: whether an idle object of this process may be deprived of it.

        Raises:
            StoreLockedError: another process, or another object of this process, holds it; names its id.
                So it does where the lock was lost and somebody else has taken it since.
            StorageError: the lock file cannot be opened.
        """
        with _TABLE_GUARD:
            held = self._held_here()
            if held is not None:
                self._take_within(held, take_over=take_over)
            held = self._held_here()
            if held is None:  # nobody held it, or a finalizer has just let go of it
                self._take_from_system()
            else:
                self._renew(held)

    def release(self, *, remove: bool = False) -> None:
        """Gives the right back; without it nothing happens.

        Args:
            remove: whether the lock file goes too, while it is still held; whoever waits behind it notices.
        """
        with _TABLE_GUARD:
            for key, held in list(_TABLE.items()):
                if held.process == os.getpid() and held.owner() is self:
                    if remove:
                        with suppress(OSError):
                            self._path.unlink()
                    del _TABLE[key]
                    os.close(held.descriptor)

    def _held_here(self) -> _Held | None:
        """The entry of this process; the file is not opened, as closing it would let go of the lock."""
        with guarded("look for the lock", self._path):
            try:
                status = self._path.stat(follow_symlinks=False)
            except FileNotFoundError:
                return None
        held = _TABLE.get((status.st_dev, status.st_ino))
        return held if held is not None and held.process == os.getpid() else None

    def _take_within(self, held: _Held, *, take_over: bool) -> None:
        owner = held.owner()
        if owner is not None and owner is not self and (owner.busy or not take_over):
            raise self._refusal(os.getpid(), "another store object of this process")
        held.owner = weakref.ref(self)

    def _renew(self, held: _Held) -> None:
        """Takes the lock on the descriptor once more, which changes nothing unless it was lost."""
        with guarded("lock", self._path):
            try:
                self._lock(held.descriptor)
            except (OSError, StoreLockedError):
                for key in [key for key, other in _TABLE.items() if other is held]:
                    del _TABLE[key]
                os.close(held.descriptor)
                raise

    def _take_from_system(self) -> None:
        with guarded("lock", self._path):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, 0o666)
            try:
                self._lock(descriptor)
            except (OSError, StoreLockedError):
                os.close(descriptor)
                raise
            status = os.fstat(descriptor)
            if status.st_nlink == 0:  # its last holder removed it while this one waited to open it
                os.close(descriptor)
                return self._take_from_system()
        _TABLE[status.st_dev, status.st_ino] = _Held(descriptor, self)
        return None

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise self._refusal(_holder(descriptor), "another process") from error

    def _refusal(self, process: int, who: str) -> StoreLockedError:
        return StoreLockedError(
            f"The {self._what} {str(self._path.parent)!r} is being written by {who} (pid {process}); "
            "stop that writer or save into another folder."
        )


def _holder(descriptor: int) -> int:
    """Process id of whoever holds the lock; 0 if it was let go meanwhile."""
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
    return int(_FLOCK.unpack(answer)[4])


def _let_go(process: int) -> None:
    """Runs when a WriterLock is collected: closes what has no owner; a forked child touches nothing."""
    if process != os.getpid():
        return
    with _TABLE_GUARD:
        for key, held in list(_TABLE.items()):
            if held.process == process and held.owner() is None:
                del _TABLE[key]
                os.close(held.descriptor)
