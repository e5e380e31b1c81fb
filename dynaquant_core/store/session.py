"""What one store object knows beyond the folder: whether it may write, and what its next delta builds on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dynaquant_core.errors import StoreNotEmptyError
from dynaquant_core.methods.base import Rejoins
from dynaquant_core.store.branch import Branch
from dynaquant_core.store.catalogue import Catalogue
from dynaquant_core.store.chain import Chain
from dynaquant_core.store.disk import file_identity, make_folder
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.lock import WriterLock
from dynaquant_core.store.meta import BaseLink, PartMeta
from dynaquant_core.store.parts import Base, Division
from dynaquant_core.store.reader import FALLBACK_ERRORS, Reader
from dynaquant_core.store.saving import Sealed
from dynaquant_core.store.super_step import SuperSteps
from dynaquant_core.store.writer import Writer
from dynaquant_core.threads import turn

__all__ = ["Session"]

logger = logging.getLogger(__name__)


class Session:
    """The writing side of a store object; every method may be called from any thread.

    Args:
        folder: the store; made at the first write.
        catalogue, reader, writer, super_steps: of the same folder.
        max_chain: deltas between a checkpoint and its key, at most.

    Attributes:
        loaded: the checkpoint last saved through this object, or loaded to go on from.
        tells: the run says through `CheckpointStore.resume` from where it goes on, so other loads only look.
        last: what a reader holds after it, also where no delta may be written against it.
        written: how weights are written from there on; None where its file does not say.
    """

    def __init__(
        self,
        folder: Path,
        catalogue: Catalogue,
        reader: Reader,
        writer: Writer,
        super_steps: SuperSteps,
        max_chain: int,
    ) -> None:
        self.loaded: CheckpointInfo | None = None
        self.last: Base | None = None
        self.tells = False
        self.written: PartMeta | None = None
        self._folder = folder
        self._catalogue = catalogue
        self._reader = reader
        self._writer = writer
        self._super_steps = super_steps
        self._max_chain = max_chain
        self._branch = Branch(max_chain)
        self._lock = WriterLock(folder)
        self._guard = turn()
        self._base: Base | None = None
        self._restored = False  # read from the store since the lock was last asked for
        self._known = False  # the folder was empty, or was read from: its checkpoints are this run's
        # Files that come later may be the run's own logs, and are no reason to refuse its first save.
        self._strange = catalogue.holds_strangers_only()

    def look(self, info: CheckpointInfo, base: Base | None, written: PartMeta | None) -> None:
        """Tells that a checkpoint was loaded, whatever for; in doubt a run goes on from it.

        Taken for a restore, a look costs some bytes: a new lattice, another base.  A restore that is taken
        for a look costs training: restored weights lie on the old lattice and would snap back to it.
        """
        self._writer.doubts.read(info, whole=base is not None)
        if not self.tells:
            self.remember(info, base, written)

    def doubt(self, names: Iterable[str]) -> None:
        """Tells of files that could not be read: they do not stay in the place of one that can be."""
        self._writer.doubts.add(names)

    def remember(self, info: CheckpointInfo, base: Base | None, written: PartMeta | None) -> None:
        """Tells that a run goes on from a checkpoint; the next save may build on ``base``.

        Args:
            info: of the checkpoint.
            base: what was decoded of it; None where that was not all.
            written: how weights are written from there on; None where its file does not say.
        """
        self._writer.doubts.read(info, whole=base is not None)
        with self._guard:
            self.loaded, self._base, self.last = info, base, base or self.last
            self.written = written
            self._known = self._restored = True
            self._branch.forget()

    def prepare(self, division: Division) -> Base | None:
        """Takes the right to write; returns the base of a delta of these tensors, None where a key is due.

        Waits for a write that is under way.

        Raises:
            StoreNotEmptyError, StoreLockedError, StorageError, NotAStoreError: see `CheckpointStore.save`.
        """
        with self._guard:
            self._take_lock()
            try:
                self.require_own_run()
            except StoreNotEmptyError:
                self._lock.release()
                raise
            self._known = True
            return self._usable_base(division)

    def commit(self, sealed: Sealed) -> CheckpointInfo:
        """Writes a sealed save (see `Writer.commit`), one at a time, and settles what the next one builds on.

        Links that make a super step are merged; from a full chain it goes back to a `Branch`.

        Returns:
            Its info, as it was saved; where links were merged, with the seconds that this took.
        """
        with self.writing():
            self.loaded, self._base = self._writer.commit(sealed, self.loaded)
            self.last, self.written = self._base, sealed.weights
            seconds = self._merge()
            if seconds is not None:
                self.loaded = replace(self.loaded, seconds={**self.loaded.seconds, "merge": seconds})
            self._go_back(self._branch.after(self._base))
            return self.loaded

    def _merge(self) -> float | None:
        """Merges links; returns the seconds that it took, None where the newest checkpoint stays as it is.

        A failure is logged, not raised: the checkpoint is saved, and its chain stays as it was.
        """
        started = time.perf_counter()
        try:
            base = self._super_steps.merge(self.written.super_step if self.written else 0)
            links = self._links_of(base) if base is not None else []
        except Exception as error:  # noqa: BLE001 - whatever a method's merge ends in, the save has succeeded
            reason = str(error) or type(error).__name__
            logger.warning("the checkpoint is saved, but the links below it could not be merged: %s", reason)
            return None
        if base is None:
            return None
        self._base = self.last = base
        self._writer.tidy()
        self._branch.merged(links)
        return time.perf_counter() - started

    def _links_of(self, base: Base) -> list[BaseLink]:
        """The files of a base's chain, key first, as deltas on them would name them."""
        entries = {entry.path: entry for entry in self._catalogue.scan().entries}
        chain = [entries[path] for path, _ in base.files if path in entries]
        return [BaseLink(entry.step, entry.meta.sequence, entry.digest) for entry in chain]

    def _go_back(self, link: BaseLink | None) -> None:
        """Makes an older link the base, read from its file; a key is next where that cannot be read."""
        newest = self._base
        if link is None or newest is None:
            return
        try:
            base = self._reader.read_digest(link.digest, lambda chain: chain.base(chain.hold()))
            for part, held in base.parts.items():
                later = newest.parts.get(part)
                if later is not None and isinstance(held.reference, Rejoins):
                    held.reference.rejoin(later.reference)
        except Exception as error:  # noqa: BLE001 - the save has succeeded, whatever this ends in
            reason = str(error) or type(error).__name__
            logger.warning("an older checkpoint cannot be built on, so a key is written: %s", reason)
            return
        self._base = self.last = base

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Holds the right to write; nobody in this process can take it over meanwhile."""
        with self._guard:
            self._take_lock()
            self._lock.busy = True
            try:
                yield
            finally:
                self._lock.busy = False

    def forget(self, digests: Iterable[str]) -> None:
        """Tells that these files are no longer there to build on; the next save is a key where it matters."""
        with self._guard:
            gone = set(digests)
            self._branch.forget(gone)
            if self._base is not None and self._base.link.digest in gone:
                self._base = None

    def close(self) -> None:
        """Waits for a write that is under way and lets go of the lock and the base."""
        with self._guard:
            self._base = self.last = None
            self.tells = False
            self._lock.release()

    def _take_lock(self) -> None:
        if self._strange and not self._known:
            self._catalogue.store()  # refuses before a lock file is left among somebody's files
        make_folder(self._folder)
        self._lock.acquire(take_over=self._restored)
        self._restored = False

    def require_own_run(self) -> None:
        """Refuses a folder whose checkpoints are another run's; takes no lock and changes nothing.

        Raises:
            StoreNotEmptyError: it holds some and none was read through this object.
        """
        if self._known:
            return
        scan = self._catalogue.scan()
        count = len(scan.entries) + len(scan.damaged)
        if count:
            raise StoreNotEmptyError(
                f"{str(self._folder)!r} holds {count} checkpoint(s) of another run; load or restore from it "
                "to go on with that run, or save into another folder."
            )

    def _usable_base(self, division: Division) -> Base | None:
        base = self._base
        if base is None or base.depth >= self._max_chain or not base.fits(division):
            return None
        if self._writer.wants_key(base):
            return None
        if all(_is_unchanged(path, identity) for path, identity in base.files):
            return base
        try:  # somebody touched a file of the chain: is it whole?
            self._reader.read_digest(base.link.digest, Chain.verify)
        except FALLBACK_ERRORS as error:
            logger.warning("the base of the next checkpoint is damaged, so a key is written: %s", error)
            self._base = None
        return self._base


def _is_unchanged(path: Path, identity: tuple[int, int, int]) -> bool:
    try:
        return file_identity(path) == identity
    except OSError:
        return False
