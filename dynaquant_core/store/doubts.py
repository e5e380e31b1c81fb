"""Which files are not counted on although their index is sound: whoever read them met damage.

Retention goes by indexes alone: it is asked after every save, when a new file has just been committed.  Where
files go that no new one stands for, the newest of those that stay are read first, every byte.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from dynaquant_core.errors import CorruptFileError, MissingBaseError, StorageError, UnsafePathError
from dynaquant_core.format import FileReader
from dynaquant_core.store.catalogue import Entry, Scan
from dynaquant_core.store.chain import chain_of
from dynaquant_core.store.disk import guarded
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.names import parse_name
from dynaquant_core.store.retention import Policy, current, kept, retired

__all__ = ["Doubts"]

logger = logging.getLogger(__name__)


class Doubts:
    """The files of one folder that a reader could not read, until they are read again."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()

    def read(self, info: CheckpointInfo, *, whole: bool) -> None:
        """Tells that a checkpoint was read, ``whole`` or in part, and what was passed over on the way."""
        passed = {problem.name for problem in info.skipped}
        read = {name for name in self._names if whole and _place(name) == (info.step, info.sequence)}
        self._names = (self._names | passed) - (read - passed)

    def add(self, names: Iterable[str]) -> None:
        """Tells of files that could not be read."""
        self._names |= frozenset(names)

    def of(self, scan: Scan) -> set[str]:
        """Digests of those that are there."""
        return {entry.digest for entry in scan.entries if entry.path.name in self._names}

    def spared(
        self, scan: Scan, policy: Policy, pins: Collection[int], stay: Collection[Entry] = ()
    ) -> list[Entry]:
        """What stays as well where files go that no new one stands for; nothing is read where none would go.

        As many of the newest checkpoints that stay as ``keep_last`` says (1 without it), and those that
        replace what goes, are then whole, every byte of their chains.  Those that are not are doubted from
        now on, and stay: nobody has read past them yet.  Where none is whole everything stays.

        Args:
            scan: a look at the folder; nobody else writes into it.
            policy: what the user wants kept.
            pins: steps that stay.
            stay: what does not go in any case.

        Raises:
            StorageError: one of them cannot be read now, and may be whole.
        """
        damaged: list[Entry] = []
        whole: set[str] = set()
        while True:
            doubts = self.of(scan)
            gone = retired(scan.entries, policy, pins, scan.hints_unread(), (*stay, *damaged), doubts)
            if not gone:
                return damaged
            ahead = kept(scan.entries, policy, pins, doubts)[: policy.keep_last or 1]
            if all(entry.digest in doubts for entry in ahead):
                return list(scan.entries)
            newest = current(scan.entries)
            ahead += [newest[step] for step in {entry.step for entry in gone}]
            passed = doubts.union(entry.digest for entry in gone)
            asked = {entry.digest: entry for entry in ahead if entry.digest not in passed}
            found = [entry for entry in asked.values() if not _is_whole(scan, entry, whole)]
            if not found:
                return damaged
            damaged += found
            self.add(entry.path.name for entry in found)


def _is_whole(scan: Scan, entry: Entry, known: set[str]) -> bool:
    """Whether an entry and all that it builds on have their bytes; ``known``: digests of files that do."""
    try:
        for file in chain_of(scan, entry):
            if file.digest not in known:
                with guarded("read", file.path), FileReader(file.path) as reader:
                    reader.verify()
                known.add(file.digest)
    except (CorruptFileError, MissingBaseError, UnsafePathError) as error:
        if scan.unread:
            raise StorageError(
                f"{entry.path.name} may build on {', '.join(sorted(scan.unread))}, which cannot be read now, "
                f"so nothing older is removed; try again when it can be."
            ) from error
        logger.warning("%s is damaged, and what is older is kept in its place: %s", entry.path.name, error)
        return False
    return True


def _place(name: str) -> tuple[int, int] | None:
    hint = parse_name(name)
    return None if hint is None else (hint.step, hint.sequence)
