"""What a user may change in a store by hand: compact it, delete a step, pin one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from dynaquant_core.arithmetic import plainly
from dynaquant_core.errors import (
    BudgetError,
    CorruptFileError,
    MissingBaseError,
    StorageError,
    UnsafePathError,
)
from dynaquant_core.methods.base import Method
from dynaquant_core.store.catalogue import Catalogue, Entry, Scan
from dynaquant_core.store.chain import Chain
from dynaquant_core.store.merge import merge
from dynaquant_core.store.names import parse_name, whole_step
from dynaquant_core.store.pins import read_pins, write_pins
from dynaquant_core.store.reader import FALLBACK_ERRORS, Reader
from dynaquant_core.store.rebase import rebase
from dynaquant_core.store.retention import Policy, needed
from dynaquant_core.store.session import Session
from dynaquant_core.store.writer import Writer

__all__ = ["Upkeep"]

logger = logging.getLogger(__name__)


class Upkeep:
    """Maintenance of one folder; see `CheckpointStore.compact`, ``delete`` and ``pin``.

    Args:
        folder: the store.
        catalogue, reader, session, writer: of the same folder.
        policy: what stays.
        max_chain: longest chain that `compact` leaves.
        own: the store's method object.
    """

    def __init__(
        self,
        folder: Path,
        catalogue: Catalogue,
        reader: Reader,
        session: Session,
        writer: Writer,
        policy: Policy,
        max_chain: int,
        own: Method | None,
    ) -> None:
        self._folder = folder
        self._catalogue = catalogue
        self._reader = reader
        self._session = session
        self._writer = writer
        self._policy = policy
        self._max_chain = max_chain
        self._own = own

    @plainly
    def compact(self) -> list[int]:
        """Re-bases what stays, then retires what nothing needs any more; steps that stay as they are."""
        with self._session.writing():
            scan, pins = self._catalogue.scan(), read_pins(self._folder)
            spared = self._writer.spared(scan, pins)
            stay = self._writer.kept(scan, pins)
            self._require_budget(scan, stay, pins)
            self._writer.tidy(spared)  # first: the disk may be full, and this takes no new file
            left = list(dict.fromkeys(entry.step for entry in spared))
            sound = [entry for entry in stay if entry not in spared]
            self._session.forget(self._rebase(self._catalogue.scan(), sound, self._max_chain, left))
            self._writer.tidy(spared)
            there = {entry.digest for entry in self._catalogue.scan().entries}
            self._session.forget(entry.digest for entry in scan.entries if entry.digest not in there)
            return left

    def _require_budget(self, scan: Scan, stay: Sequence[Entry], pins: Collection[int]) -> None:
        """Removes nothing for a budget that not even the newest and the pinned would keep, each as a key.

        A key that a delta would be written anew as is about as large as the one below it.
        """
        budget = self._policy.keep_within
        if budget is None or not stay:
            return
        feet = [_foot(scan, entry) for entry in stay if entry is stay[0] or entry.step in pins]
        least = sum(entry.size for entry in {entry.digest: entry for entry in feet}.values())
        if least > budget:
            raise BudgetError(
                f"The newest checkpoint of {str(self._folder)!r} and the pinned ones take about {least:,} "
                f"bytes, but keep_within allows {budget:,}; nothing was removed; raise it (100GB, say), or "
                f"unpin steps."
            )

    @plainly
    def delete(self, step: int) -> None:
        """Removes every file of a step, after what builds on one was written anew."""
        step = whole_step(step)
        with self._session.writing():
            scan = self._catalogue.scan()
            self._require_read(scan, step)
            damaged = [item.name for item in scan.damaged if _hints_at(item.name, step)]
            if not damaged:
                self._reader.find(scan, step)
            gone = {entry.digest: entry for entry in scan.entries if entry.step == step}
            others = [entry for entry in scan.current().values() if entry.step != step]
            stay = [entry for entry in needed(others, scan.entries).values() if entry.digest not in gone]
            _require_bases(scan, stay, step)
            replaced = self._rebase(scan, stay, self._max_chain + len(scan.entries), [])
            self._require_moved(stay, replaced, gone)
            self._set_pins(read_pins(self._folder) - {step})
            old = [entry for entry in scan.entries if entry.digest in replaced or entry.digest in gone]
            self._session.forget([*replaced, *gone])
            self._writer.remove(
                [entry.path for entry in reversed(old)] + [self._folder / name for name in damaged]
            )

    def _require_read(self, scan: Scan, step: int) -> None:
        """Whatever cannot be read now may build on the step."""
        others = sorted(name for name in scan.unread if not _hints_at(name, step))
        if others:
            raise StorageError(
                f"Step {step} stays: {others[0]} cannot be read now and may build on it; try again when it "
                f"can be, or delete that step first."
            )

    def _require_moved(self, stay: Iterable[Entry], replaced: Collection[str], gone: Collection[str]) -> None:
        """What stays and builds on a file that goes was written anew, or is damaged itself."""
        for entry in stay:
            if entry.base_digest in gone and entry.digest not in replaced and self._is_whole(entry):
                raise StorageError(
                    f"{entry.path.name} builds on what was to be deleted and could not be written anew just "
                    f"now; try again."
                )

    def _is_whole(self, entry: Entry) -> bool:
        try:
            self._reader.read_digest(entry.digest, Chain.verify)
        except CorruptFileError:
            return False
        except FALLBACK_ERRORS:
            return True  # who knows
        return True

    def pin(self, step: int) -> None:
        """Adds a step to the pins."""
        with self._session.writing():
            entry = self._reader.find(self._catalogue.scan(), step)
            self._set_pins(read_pins(self._folder) | {entry.step})

    def unpin(self, step: int) -> None:
        """Takes a step from the pins."""
        with self._session.writing():
            self._set_pins(read_pins(self._folder) - {whole_step(step)})

    def _set_pins(self, steps: Iterable[int]) -> None:
        wanted = frozenset(steps)
        if wanted != read_pins(self._folder):
            write_pins(self._folder, wanted)

    def _rebase(self, scan: Scan, stay: Iterable[Entry], max_chain: int, left: list[int]) -> list[str]:
        """Writes anew what builds on a file outside ``stay``.

        Args:
            scan: a look at the folder; nobody else writes into it.
            stay: the files that stay.
            max_chain: longest chain.
            left: gets the steps of those that could not be written anew.

        Returns:
            Digests of what was replaced.
        """
        # By commit sequence, which a checkpoint's revisions share: they decode to the same bits, and what a
        # run that was killed has written anew stands for the file that others still build on.
        settled: dict[int, tuple[Entry, int]] = {}  # -> the file that stands for it, its chain's length
        replaced: list[str] = []
        for entry in sorted(stay, key=lambda entry: entry.order):
            link = entry.meta.base
            base, depth = settled.get(link.sequence, (None, -1)) if link else (None, -1)
            if base is not None and depth >= max_chain:
                base = None
            settled[entry.meta.sequence] = entry, depth + 1 if base else 0
            if link is None or (base and base.digest == link.digest):
                continue
            try:
                merged = self._merged(scan, entry, settled, max_chain)
                new = merged or rebase(scan, entry, base, self._own)
            except (CorruptFileError, MissingBaseError, UnsafePathError) as error:
                logger.warning("%s cannot be re-based and stays as it is: %s", entry.path.name, error)
                left.append(entry.step)
                continue
            scan = scan.adding(new)
            below = new.meta.base
            settled[entry.meta.sequence] = new, settled[below.sequence][1] + 1 if below else 0
            replaced.append(entry.digest)
        return replaced

    def _merged(
        self, scan: Scan, entry: Entry, settled: Mapping[int, tuple[Entry, int]], max_chain: int
    ) -> Entry | None:
        """The entry on the nearest checkpoint below that stays; None: its base stays, or a key is due."""
        below = scan.by_digest(entry.base_digest or "")
        if below is None or below.meta.sequence in settled:
            return None
        while below is not None and below.meta.sequence not in settled:
            below = scan.by_digest(below.base_digest or "")
        if below is None:
            return None
        base, depth = settled[below.meta.sequence]
        return merge(scan, entry, base, self._own) if depth < max_chain else None


def _require_bases(scan: Scan, stay: Iterable[Entry], step: int) -> None:
    """What builds on a file of the step that cannot be read just now could not be written anew."""
    unread = sorted(name for name in scan.unread if _hints_at(name, step))
    for entry in stay if unread else ():
        if entry.base_digest is not None and scan.by_digest(entry.base_digest) is None:
            raise StorageError(
                f"Step {step} stays: {unread[0]} cannot be read now, and {entry.path.name} may build on it; "
                f"try again when it can be, or delete step {entry.step} first."
            )


def _foot(scan: Scan, entry: Entry) -> Entry:
    """The key below an entry, or the lowest that is there."""
    while (base := scan.by_digest(entry.base_digest or "")) is not None:
        entry = base
    return entry


def _hints_at(name: str, step: int) -> bool:
    hint = parse_name(name)
    return hint is not None and hint.step == step
