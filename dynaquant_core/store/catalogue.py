"""What is in a store's folder: every checkpoint file by its own index, and what could not be read.

Nothing is written to find this out and no lock is taken.  What was read of a file is remembered until its
inode, size or time of modification changes.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dynaquant_core.errors import (
    CorruptFileError,
    LimitError,
    NotAStoreError,
    StorageError,
    UnsafePathError,
    VersionError,
)
from dynaquant_core.format import FileReader
from dynaquant_core.format.index import as_damage
from dynaquant_core.store.disk import file_identity, guarded, is_gone
from dynaquant_core.store.info import CheckpointInfo, Problem
from dynaquant_core.store.meta import LIMIT, Meta
from dynaquant_core.store.names import is_ours, parse_name
from dynaquant_core.store.retention import current
from dynaquant_core.store.summary import summarise
from dynaquant_core.threads import turn

__all__ = ["READ_ERRORS", "Catalogue", "Entry", "Scan"]

#: What a damaged, foreign, too new or unreadable file ends in.
READ_ERRORS = (CorruptFileError, UnsafePathError, StorageError)

#: Looks at a folder whose checkpoints are all retired under every look.
LOOKS = 100

#: What a file system makes at its own root: a fresh disk is an empty folder.
SYSTEMS_OWN = "lost+found"


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint file, as its own index describes it.

    Args:
        path: where it is.
        digest: identity of its content.
        meta: step, commit sequence, base, methods.
        size: bytes of the file.
        weights_bytes, exact_bytes: bytes of the streams of the parts "weights" and "exact".
        info: what a user is told about it.
    """

    path: Path
    digest: str
    meta: Meta
    size: int
    weights_bytes: int
    exact_bytes: int
    info: CheckpointInfo

    @property
    def step(self) -> int:
        """Completed optimizer steps."""
        return self.meta.step

    @property
    def order(self) -> tuple[int, int]:
        """(commit sequence, revision): the larger is newer."""
        return self.meta.order

    @property
    def base_digest(self) -> str | None:
        """Identity of the base; None for a key."""
        return self.meta.base.digest if self.meta.base else None


@dataclass(frozen=True, slots=True)
class Scan:
    """One look at the folder.

    Args:
        entries: every file whose index is sound, oldest first.
        damaged: files that bear a checkpoint's name and cannot be read.
        unread: names of those of them that may be whole: the system refused, or a later version wrote them.
        foreign: whether the folder holds entries that no store wrote.
    """

    entries: tuple[Entry, ...]
    damaged: tuple[Problem, ...]
    unread: frozenset[str]
    foreign: bool
    _by_digest: Mapping[str, Entry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Of two files of the same content the older name counts.
        by_digest = {entry.digest: entry for entry in reversed(self.entries)}
        object.__setattr__(self, "_by_digest", by_digest)

    @property
    def of_strangers(self) -> bool:
        """Whether it is a folder of something else: other entries, and no checkpoint."""
        return self.foreign and not self.entries and not self.damaged

    def current(self) -> dict[int, Entry]:
        """Step -> its newest file, by ascending step."""
        newest = current(self.entries)
        return {step: newest[step] for step in sorted(newest)}

    def newest_first(self) -> list[Entry]:
        """The newest file of each step, the last committed first."""
        return sorted(self.current().values(), key=lambda entry: entry.order, reverse=True)

    def by_digest(self, digest: str) -> Entry | None:
        """The file of that identity."""
        return self._by_digest.get(digest)

    def adding(self, entry: Entry) -> Scan:
        """What a look would find once the file was committed."""
        return replace(self, entries=tuple(sorted((*self.entries, entry), key=_place)))

    def hints_unread(self) -> list[tuple[int, int]] | None:
        """(step, commit sequence) in the names of `unread`; None where every file could be read."""
        if not self.damaged:
            return None
        return [(hint.step, hint.sequence) for name in self.unread if (hint := parse_name(name))]

    def next_sequence(self) -> int:
        """One more than every sequence in an index or hinted at by a name.

        Raises:
            LimitError: a file claims the last sequence there is.
        """
        hints = [hint.sequence for item in self.damaged if (hint := parse_name(item.name))]
        sequence = max([entry.meta.sequence for entry in self.entries] + hints, default=0) + 1
        if sequence >= LIMIT:
            raise LimitError(
                f"A file claims the commit sequence {sequence - 1}; remove it, no run gets that far."
            )
        return sequence


class Catalogue:
    """Reads a folder's checkpoints, remembering those that have not changed.

    Args:
        folder: the store; it may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, int, int], Entry]] = {}
        self._guard = turn()

    def scan(self) -> Scan:
        """What is there now.

        Raises:
            NotAStoreError: the path is not a folder.
            StorageError: the folder cannot be listed.
        """
        for _ in range(LOOKS):
            scan, gone = self._look()
            if scan.entries or scan.damaged or not gone:
                break  # else a writer has retired all that were listed, and committed others before it did
        return scan

    def _look(self) -> tuple[Scan, bool]:
        """One look, and whether a checkpoint that was listed had gone before it was read."""
        names = self._listed()
        entries: list[Entry] = []
        damaged: list[Problem] = []
        unread: set[str] = set()
        foreign = gone = False
        for name in names:
            hint = parse_name(name)
            if hint is None:
                foreign = foreign or is_foreign(name)
                continue
            try:
                entries.append(self._entry(name))
            except (*READ_ERRORS, OSError) as error:
                if is_gone(error):  # a writer has just retired it
                    gone = True
                    continue
                damaged.append(Problem(name, hint.step, str(error)))
                if isinstance(error, (OSError, VersionError)):
                    unread.add(name)
        with self._guard:
            self._known = {name: value for name, value in self._known.items() if name in names}
        entries.sort(key=_place)
        return Scan(tuple(entries), tuple(damaged), frozenset(unread), foreign), gone

    def store(self) -> Scan:
        """What is there now, of a store or of what may become one.

        Raises:
            NotAStoreError: the folder holds other files but no checkpoint.
            Others as `scan`.
        """
        scan = self.scan()
        if scan.of_strangers:
            raise no_store(self._folder)
        return scan

    def holds_strangers_only(self) -> bool:
        """Whether it is a folder of something else, by its names alone; False where it cannot be listed."""
        try:
            names = self._listed()
        except (NotAStoreError, StorageError):  # whoever reads or writes there is told
            return False
        return any(map(is_foreign, names)) and not any(map(parse_name, names))

    def forget(self, path: Path) -> None:
        """Reads ``path`` anew at the next scan."""
        with self._guard:
            self._known.pop(path.name, None)

    def _listed(self) -> set[str]:
        folder = self._folder
        with guarded("list", folder):
            if not folder.exists():
                return set()
            if not folder.is_dir():
                raise NotAStoreError(f"{str(folder)!r} is a file; a store is a folder of checkpoints.")
            with os.scandir(folder) as found:
                return {item.name for item in found}

    def _entry(self, name: str) -> Entry:
        identity = file_identity(f"{self._folder}{os.sep}{name}")  # a Path costs as much as the system's call
        with self._guard:
            known = self._known.get(name)
        if known is not None and known[0] == identity:
            return known[1]
        entry = read_entry(self._folder / name)
        with self._guard:
            self._known[name] = identity, entry
        return entry


def is_foreign(name: str) -> bool:
    """Whether neither a store nor the system has written ``name``; hidden files tell nothing of a folder."""
    return not (name.startswith(".") or name == SYSTEMS_OWN or is_ours(name))


def no_store(folder: Path) -> NotAStoreError:
    """What reading from a folder of something else ends in, and a first save into it."""
    return NotAStoreError(
        f"{str(folder)!r} holds other files but no checkpoint; give the folder of a store, or an empty "
        "or new one to save into."
    )


def _place(entry: Entry) -> tuple[tuple[int, int], str]:
    return entry.order, entry.path.name


def read_entry(path: Path) -> Entry:
    """Reads one file's index.

    Raises:
        CorruptFileError: the file is damaged; VersionError: it is too new.
        UnsafePathError: it is not a regular file.
        StorageError: it cannot be read, or is gone.
    """
    with FileReader(path) as reader, as_damage(path.name):
        meta = Meta.from_dict(reader.index.meta, path.name)
        parts: Counter[str] = Counter()
        for stream in reader.index.streams:
            parts[stream.part] += stream.nbytes
        info = summarise(reader.index, meta, reader.nbytes)
        return Entry(path, reader.digest, meta, reader.nbytes, parts["weights"], parts["exact"], info)
