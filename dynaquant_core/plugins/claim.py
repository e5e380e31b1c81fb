"""A folder in which one process works: another is refused, instead of taking its files away."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dynaquant_core.errors import StorageError
from dynaquant_core.store.disk import guarded
from dynaquant_core.store.lock import WriterLock

__all__ = ["Claim"]

#: Attempts at a folder that its last owner removes meanwhile.
ATTEMPTS = 3


class Claim:
    """The right to work in a folder; it ends with the process at the latest.

    Args:
        folder: is made where it is missing.

    Raises:
        StoreLockedError: another process has it, or another claim of this one; names the process.
        StorageError: the system refused.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = WriterLock(folder)
        for attempt in range(ATTEMPTS):
            with guarded("make", folder):
                folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(take_over=False)
                break
            except StorageError:
                if folder.exists() or attempt == ATTEMPTS - 1:
                    raise

    def release(self) -> None:
        """Gives the right back; the folder goes if nothing else is in it."""
        self._lock.release(remove=True)
        with suppress(OSError):
            self.folder.rmdir()
