"""A checkpoint file held open, so that it can be put into other folders whatever becomes of its own.

Frameworks remove and rename the folders of old checkpoints; what a later delta builds on must outlive that.
A hard link costs nothing, and is made of the open file itself, whatever it is called now; where there can be
none (another file system, one without links, a file whose every name is gone), the bytes are copied from it.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

from dynaquant_core.errors import CorruptFileError, StorageError
from dynaquant_core.format import FileReader
from dynaquant_core.store.catalogue import Entry
from dynaquant_core.store.commit import atomic_file
from dynaquant_core.store.disk import guarded
from dynaquant_core.store.names import checkpoint_name, parse_name

__all__ = ["KeptFile"]

logger = logging.getLogger(__name__)

#: Where Linux lists a process's open files, as links that can be followed to files without a known name.
DESCRIPTORS = "/proc/self/fd"
#: Bytes copied at a time.
CHUNK = 1 << 20
#: Names tried for one file in a folder that holds others of its name.
REVISIONS = 1000


class KeptFile:
    """One checkpoint file, open.

    Args:
        path: where it is; it may be renamed or removed later.
        digest: its identity, as its index tells it.

    Attributes:
        linked: whether it came to its place without taking any space.

    Raises:
        StorageError: it cannot be opened.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path.absolute()
        self.digest = digest
        self.linked = True
        with guarded("open", path):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            self._identity = self._now()
        self.close = weakref.finalize(self, os.close, self._descriptor)

    @classmethod
    def of(cls, entry: Entry, identity: tuple[int, int, int]) -> KeptFile:
        """Holds the file of a catalogue's entry, which was read when its identity was this.

        Raises:
            CorruptFileError: another file has taken its place since.
        """
        kept = cls(entry.path, entry.digest)
        if kept._identity != identity:
            raise CorruptFileError(
                f"{str(entry.path)!r} was replaced by another file while it was read; read it again."
            )
        return kept

    @property
    def intact(self) -> bool:
        """Whether nobody has written to it since it was opened."""
        return self._now() == self._identity

    @property
    def named(self) -> bool:
        """Whether it still has a name in some folder, so that a link can be made of it."""
        return os.fstat(self._descriptor).st_nlink > 0

    @property
    def device(self) -> int:
        """The file system that it is on."""
        return os.fstat(self._descriptor).st_dev

    def put(self, folder: Path) -> KeptFile:
        """Puts the file into ``folder``, linked or copied, under a name that is free there.

        The caller holds the folder's lock and makes the folder durable afterwards.

        Returns:
            The file in its new place; ``linked`` tells whether it took any space.

        Raises:
            StorageError: the system refused.
        """
        for name in self._names():
            target = folder / name
            if self._is_at(target):
                return KeptFile(target, self.digest)
            if os.path.lexists(target):
                continue
            placed = self._link(target) or self._copy(target)
            kept = KeptFile(target, self.digest)
            kept.linked = placed
            return kept
        raise StorageError(f"{str(folder)!r} holds {REVISIONS} files named like {self.path.name}; empty it.")

    def _names(self) -> Iterator[str]:
        """Its own name first; a name only hints, so that another revision's does as well."""
        hint = parse_name(self.path.name)
        yield self.path.name
        if hint is not None:
            yield from (checkpoint_name(hint.step, hint.sequence, number) for number in range(1, REVISIONS))

    def _link(self, target: Path) -> bool:
        """Links the open file, or what has its last known name; False: neither can be."""
        here = self._descriptor
        for source in (f"{DESCRIPTORS}/{here}", self.path):
            try:  # given a descriptor Python calls linkat, which can follow; absolute paths ignore it
                os.link(source, target, src_dir_fd=here, follow_symlinks=source is not self.path)
            except OSError as error:
                logger.debug("%s cannot be linked from %s: %s", self.path.name, source, error)
                continue
            if self._is_at(target):
                return True
            with guarded("remove", target):  # another file had taken its name
                target.unlink()
        return False

    def _copy(self, target: Path) -> bool:
        """Copies the bytes and checks every one against the copy's own checksums; False: it took space."""
        with atomic_file(target) as file:
            offset = 0
            while chunk := os.pread(self._descriptor, CHUNK, offset):
                file.write(chunk)
                offset += len(chunk)
        with FileReader(target) as reader:
            reader.verify()
        return False

    def _is_at(self, path: Path) -> bool:
        try:
            status = path.stat(follow_symlinks=False)
        except OSError:
            return False
        mine = os.fstat(self._descriptor)
        return (status.st_dev, status.st_ino) == (mine.st_dev, mine.st_ino)

    def _now(self) -> tuple[int, int, int]:
        status = os.fstat(self._descriptor)
        return status.st_ino, status.st_size, status.st_mtime_ns
