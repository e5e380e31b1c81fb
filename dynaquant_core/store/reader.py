"""Finds checkpoints and reads them, while a writer may be retiring files.

A read that fails is repeated as long as the folder looks different from what it was: only a failure on a
folder that stands still is the reader's answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dynaquant_core.errors import (
    CheckpointNotFoundError,
    DynaQuantError,
    EmptyStoreError,
    MissingBaseError,
)
from dynaquant_core.methods.base import Method
from dynaquant_core.store.catalogue import READ_ERRORS, Catalogue, Entry, Scan, no_store, read_entry
from dynaquant_core.store.chain import Chain, open_chain
from dynaquant_core.store.descriptors import is_out_of_means
from dynaquant_core.store.info import CheckpointInfo, Problem
from dynaquant_core.store.names import parse_name, whole_step

__all__ = ["FALLBACK_ERRORS", "Reader"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

#: What makes a reader of the newest checkpoint go on to the one before.
FALLBACK_ERRORS = (*READ_ERRORS, MissingBaseError)

#: Looks at a folder that changes under every look, before the failure is taken for one.
MAX_LOOKS = 100


class Reader:
    """Reads from one folder.

    Args:
        folder: the store.
        catalogue: of the same folder.
        own: the store's method object, for files of a method that no registry knows.
    """

    def __init__(self, folder: Path, catalogue: Catalogue, own: Method | None) -> None:
        self._folder = folder
        self._catalogue = catalogue
        self._own = own

    def find(self, scan: Scan, step: int) -> Entry:
        """The newest file of a step.

        Raises:
            CheckpointNotFoundError: there is none; names the nearest steps.
            NotAStoreError: it is a look at a folder of something else.
            CorruptFileError: the newest file that bears the step's name is damaged.
            ConfigError: ``step`` is no whole number.
        """
        step = whole_step(step)
        entry = scan.current().get(step)
        damaged = [
            (hint, item) for item in scan.damaged if (hint := parse_name(item.name)) and hint.step == step
        ]
        for hint, item in damaged:
            if entry is None or (hint.sequence, hint.revision) > entry.order:
                return read_entry(self._folder / item.name)  # raises what is wrong with it
        if entry is None and scan.of_strangers:
            raise no_store(self._folder)
        if entry is None:
            raise CheckpointNotFoundError(self._not_found(scan, step))
        return entry

    def read(self, step: int | None, action: Callable[[Chain], Result]) -> tuple[CheckpointInfo, Result]:
        """Runs ``action`` on the open chain of a checkpoint.

        Args:
            step: the step; None: the newest checkpoint on which ``action`` succeeds.
            action: reads from the chain; may be run more than once.

        Returns:
            The checkpoint's info, with what was passed over, and what ``action`` returned.

        Raises:
            EmptyStoreError: there is no checkpoint, or none is whole; lists the reasons.
            NotAStoreError: the path is a file, or a folder of something else.
            CheckpointNotFoundError: an explicit step is not there.
            CorruptFileError, MissingBaseError: an explicit step cannot be read.
        """
        for _ in range(MAX_LOOKS):
            scan = self._catalogue.scan()
            failure: Exception | None = None
            found: tuple[CheckpointInfo, Result] | None = None
            try:
                found = self._newest(scan, action) if step is None else self._explicit(scan, step, action)
            except (*FALLBACK_ERRORS, EmptyStoreError, CheckpointNotFoundError) as error:
                failure = error
            untroubled = found is not None and not found[0].skipped
            if untroubled or _looks(self._catalogue.scan()) == _looks(scan):
                break
        if found is None:
            assert failure is not None
            raise failure
        for item in found[0].skipped:
            logger.warning("passed over a checkpoint that cannot be read: %s", item)
        return found

    def names_of(self, step: int) -> list[str]:
        """The file that `read` takes for an explicit step; none where its index cannot be read either."""
        try:
            return [self.find(self._catalogue.scan(), step).path.name]
        except DynaQuantError:
            return []

    def read_digest(self, digest: str, action: Callable[[Chain], Result]) -> Result:
        """Runs ``action`` on the open chain of the file of that identity.

        Raises:
            MissingBaseError: it is not in the store, or a base of it is not.
            CorruptFileError, StorageError: it cannot be read.
        """
        scan = self._catalogue.scan()
        entry = scan.by_digest(digest)
        if entry is None:
            raise MissingBaseError(f"The checkpoint {digest} has gone from {str(self._folder)!r}.")
        with open_chain(scan, entry, self._own) as chain:
            return action(chain)

    def _explicit(
        self, scan: Scan, step: int, action: Callable[[Chain], Result]
    ) -> tuple[CheckpointInfo, Result]:
        entry = self.find(scan, step)
        with open_chain(scan, entry, self._own) as chain:
            return entry.info, action(chain)

    def _newest(self, scan: Scan, action: Callable[[Chain], Result]) -> tuple[CheckpointInfo, Result]:
        skipped: list[Problem] = []
        for entry in reversed(scan.entries):
            try:
                with open_chain(scan, entry, self._own) as chain:
                    result = action(chain)
            except FALLBACK_ERRORS as error:
                if is_out_of_means(error):  # then the checkpoint before it is none the better for it
                    raise
                skipped.append(Problem(entry.path.name, entry.step, str(error)))
                continue
            return replace(entry.info, skipped=(*_newer(scan, entry), *skipped)), result
        raise self._nothing(scan, (*scan.damaged, *skipped))

    def _nothing(self, scan: Scan, skipped: tuple[Problem, ...]) -> DynaQuantError:
        where = repr(str(self._folder))
        if skipped:
            reasons = " ".join(map(str, skipped))
            return EmptyStoreError(f"No checkpoint in {where} can be read: {reasons}")
        if scan.of_strangers:
            return no_store(self._folder)
        missing = "is empty" if self._folder.is_dir() else "does not exist"
        return EmptyStoreError(f"There is no checkpoint: the folder {where} {missing}; save into it first.")

    def _not_found(self, scan: Scan, step: int) -> str:
        steps = sorted(scan.current(), key=lambda other: abs(other - step))[:3]
        near = f"the nearest are {', '.join(map(str, sorted(steps)))}" if steps else "it holds none"
        return f"There is no checkpoint of step {step} in {str(self._folder)!r}; {near}."


def _newer(scan: Scan, entry: Entry) -> tuple[Problem, ...]:
    """Damaged files that, by their names, were committed after ``entry``."""
    hints = [(item, parse_name(item.name)) for item in scan.damaged]
    return tuple(item for item, hint in hints if hint and (hint.sequence, hint.revision) > entry.order)


def _looks(scan: Scan) -> tuple[frozenset[str], frozenset[str]]:
    """What tells one look at the folder from another."""
    return frozenset(entry.path.name for entry in scan.entries), frozenset(item.name for item in scan.damaged)
