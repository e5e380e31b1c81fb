"""Everything that changes a store: the next file, and what may be removed after it.

The order is the guarantee: the new file is committed first, and only then may older ones go.  Where the disk
has no room for both, what retention lets go anyway goes first; the newest checkpoint that is whole always
stays, and so does the one that the run goes on from.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dynaquant_core.errors import BudgetError, CorruptFileError, MissingBaseError, StorageError
from dynaquant_core.format import FileWriter
from dynaquant_core.store.catalogue import Catalogue, Entry, Scan, read_entry
from dynaquant_core.store.commit import atomic_file
from dynaquant_core.store.disk import file_identity, guarded, require_space, sync_folder
from dynaquant_core.store.doubts import Doubts
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.meta import BaseLink, Meta
from dynaquant_core.store.names import checkpoint_name, is_leftover
from dynaquant_core.store.parts import Base, HeldPart
from dynaquant_core.store.pins import read_pins
from dynaquant_core.store.retention import Policy, current, kept, retired, total
from dynaquant_core.store.saving import Sealed

__all__ = ["Writer", "next_base", "write_file"]

logger = logging.getLogger(__name__)


class Writer:
    """Writes into one folder; its caller holds the store's lock.

    Args:
        folder: the store; it exists.
        catalogue: of the same folder.
        policy: what stays.

    Attributes:
        doubts: files that could not be read.
    """

    def __init__(self, folder: Path, catalogue: Catalogue, policy: Policy) -> None:
        self._folder = folder
        self._catalogue = catalogue
        self._policy = policy
        self.doubts = Doubts()

    def kept(self, scan: Scan, pins: Collection[int]) -> list[Entry]:
        """The checkpoints that stay for their own sake."""
        return kept(scan.entries, self._policy, pins, self.doubts.of(scan))

    def spared(self, scan: Scan, pins: Collection[int]) -> list[Entry]:
        """What stays as well where nothing was committed: see `Doubts.spared`."""
        return self.doubts.spared(scan, self._policy, pins)

    def commit(self, sealed: Sealed, loaded: CheckpointInfo | None = None) -> tuple[CheckpointInfo, Base]:
        """Writes ``sealed`` as the newest checkpoint, then retires what the policy lets go.

        Args:
            sealed: the save.
            loaded: what its run went on from or saved last; it stays until the new file is committed.

        Returns:
            Its info, and what the next delta may be written against.

        Raises:
            StorageError: the system refused; nothing is lost and nothing half-written is left.
            BudgetError: the checkpoint and what must stay would exceed ``keep_within``; nothing was written.
            MissingBaseError: the base was removed while the save was prepared.
        """
        scan = self._catalogue.scan()
        self._require_base(scan, sealed)
        room = self._require_budget(scan, sealed)
        self._require_space(scan, sealed, loaded)
        meta = sealed.meta(scan.next_sequence())
        path = self._folder / checkpoint_name(meta.step, meta.sequence)
        parts, seconds = write_file(path, sealed, meta, room)
        entry = read_entry(path)
        self.tidy(scan=scan.adding(entry))
        return replace(entry.info, seconds=seconds), next_base(entry, sealed.base, parts)

    def tidy(self, also: Collection[Entry] = (), scan: Scan | None = None) -> None:
        """Removes what retention lets go and what dead saves left behind, but not ``also`` or its bases.

        A failure is logged, not raised: whatever should have gone stays until the next save.

        Args:
            also: files that stay.
            scan: what is there, where that is known: thousands of files take a while to look at.
        """
        try:
            scan, pins = scan or self._catalogue.scan(), read_pins(self._folder)
            unread, doubts = scan.hints_unread(), self.doubts.of(scan)
            gone = retired(scan.entries, self._policy, pins, unread, also, doubts)
            if scan.unread:
                names = ", ".join(sorted(scan.unread))
                logger.warning("%s cannot be read now: what is older stays, as it may build on that", names)
            self.remove(entry.path for entry in gone)
            with os.scandir(self._folder) as found:
                left = [item.name for item in found if is_leftover(item.name)]
            self.remove(self._folder / name for name in left)
        except (StorageError, CorruptFileError, OSError) as error:
            logger.warning("older files could not be removed, and stay until the next save: %s", error)

    def remove(self, paths: Iterable[Path]) -> None:
        """Removes files of this store, in this order, durably.

        Raises:
            StorageError: the system refused; the files after that one are still there.
        """
        removed = False
        for path in paths:
            with guarded("remove", path):
                path.unlink()
            removed = True
            logger.debug("removed %s", path.name)
        if removed:
            with guarded("make removals durable in", self._folder):
                sync_folder(self._folder)

    def wants_key(self, base: Base) -> bool:
        """Whether ``keep_within`` leaves no room for another link of a base's chain, but room for a new key.

        What a delta builds on must stay, all of it; what stays beside a key are the pinned steps alone.  How
        large the delta will be is not known yet: it counts like the chain's key, which it is not larger than.
        """
        if self._policy.keep_within is None:
            return False
        scan = self._catalogue.scan()
        newest = scan.by_digest(base.link.digest)
        if newest is None:
            return False
        key = newest
        while (below := scan.by_digest(key.base_digest or "")) is not None:
            key = below
        room = self._policy.keep_within - key.size
        pinned = self._pinned(scan)
        return total([*pinned, newest], scan.entries) > room >= total(pinned, scan.entries)

    def _pinned(self, scan: Scan) -> list[Entry]:
        """The pinned checkpoints; none where the pins are damaged, which stops retention (`tidy` says so)."""
        newest = current(scan.entries)
        try:
            pins = read_pins(self._folder)
        except CorruptFileError:
            return []
        return [newest[step] for step in pins if step in newest]

    def _require_base(self, scan: Scan, sealed: Sealed) -> None:
        link = sealed.link
        if link is not None and scan.by_digest(link.digest) is None:
            raise MissingBaseError(
                f"The save of step {sealed.step} builds on the checkpoint of step {link.step}, which is gone "
                f"from {str(self._folder)!r}; save again to write a key checkpoint."
            )

    def _require_space(self, scan: Scan, sealed: Sealed, loaded: CheckpointInfo | None) -> None:
        """Asks for room; where there is too little, once more without what may go anyway."""
        try:
            require_space(self._folder, sealed.most, sealed.estimate)
        except StorageError:
            place = (loaded.step, loaded.sequence) if loaded else None
            stay = [entry for entry in scan.entries if (entry.step, entry.meta.sequence) == place]
            base = scan.by_digest(sealed.link.digest) if sealed.link else None
            self._make_room(scan, [*stay, base] if base else stay)
            require_space(self._folder, sealed.most, sealed.estimate)

    def _make_room(self, scan: Scan, stay: Collection[Entry]) -> None:
        """Removes what may go before anything new is there; nothing where that cannot be told."""
        try:
            spared = self.doubts.spared(scan, self._policy, read_pins(self._folder), stay)
        except (StorageError, CorruptFileError) as error:
            logger.warning("nothing was removed to make room: %s", error)
            return
        self.tidy([*stay, *spared])

    def _require_budget(self, scan: Scan, sealed: Sealed) -> Room | None:
        """What must stay after this save: itself, what it builds on, and the pinned steps."""
        budget = self._policy.keep_within
        if budget is None:
            return None
        base = scan.by_digest(sealed.link.digest) if sealed.link else None
        room = Room(budget, total([*self._pinned(scan), *([base] if base else [])], scan.entries))
        room.require(sealed.step, sealed.estimate(), "about ")
        return room


@dataclass(frozen=True, slots=True)
class Room:
    """What a disk budget leaves for a new file.

    Args:
        budget: bytes in all.
        taken: bytes of what must stay beside it.
    """

    budget: int
    taken: int

    def require(self, step: int, size: int, nearly: str = "") -> None:
        """Refuses a file of ``size`` bytes that there is no room for."""
        if self.taken + size > self.budget:
            raise BudgetError(
                f"Saving step {step} would need {nearly}{self.taken + size:,} bytes with the checkpoints "
                f"that must stay, but keep_within allows {self.budget:,}; raise it, unpin steps or lower "
                "max_chain."
            )


def write_file(
    path: Path, sealed: Sealed, meta: Meta, room: Room | None = None
) -> tuple[dict[str, HeldPart], dict[str, float]]:
    """Writes and commits one file.

    Returns:
        What a reader of it holds, and the seconds that each stage took.

    Raises:
        StorageError: the system refused; nothing appeared under ``path``.
        BudgetError: it came out larger than there is ``room`` for; nothing appeared either.
    """
    started = time.perf_counter()
    with atomic_file(path) as file:
        writer = FileWriter(file)
        parts = sealed.encode(writer)
        encoded = time.perf_counter()
        seconds = {**sealed.report["seconds"], "encode": encoded - started}
        meta = replace(meta, report={**meta.report, "seconds": seconds})
        writer.finish(meta.as_dict(), sealed.skeleton, sealed.entries)
        if room is not None:
            room.require(meta.step, file.tell())
    return parts, {**seconds, "commit": time.perf_counter() - encoded}


def next_base(entry: Entry, base: Base | None, parts: dict[str, HeldPart]) -> Base:
    """What the checkpoint after ``entry`` may be written against."""
    here: tuple[Any, ...] = ((entry.path, _identity(entry.path)),)
    spared = entry.exact_bytes if base is None else base.spared
    if base is not None and base.depth == 0:  # the first delta shows what a key took for nothing
        spared = max(spared - entry.exact_bytes, 0)
    return Base(
        link=BaseLink(entry.step, entry.meta.sequence, entry.digest),
        depth=base.depth + 1 if base else 0,
        parts=parts,
        key_bytes=base.key_bytes if base else entry.weights_bytes,
        newest_bytes=entry.weights_bytes,
        spared=spared,
        files=(*base.files, *here) if base else here,
    )


def _identity(path: Path) -> tuple[int, int, int]:
    """Of a file that was just committed; where the system does not say, one that no file has."""
    try:
        return file_identity(path)
    except OSError:
        return 0, 0, 0  # so the next save reads the chain before it builds on it
