"""Super steps: several links of a chain become one in the background (arXiv 2009.13003, in our reading).

A method that can merge says how many links make a super step, and a checkpoint notes it for whoever goes on
with the run.  After a commit, where that many lie in a row and retention wants only the last of them, that
one is written anew on the base of the first (see `merge`), and so is, bit for bit, all that was built on it.
The files between then go as any that nothing needs.

    keep_last=1, super_step=3:    key 1 2 3  ->  key 3'  ->  key 3' 4 5 6  ->  key 3' 6'

Super steps are not merged again: their buckets would be the combinations of all of theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from dynaquant_core.arithmetic import plainly
from dynaquant_core.methods.base import Method
from dynaquant_core.store.catalogue import Catalogue, Entry, Scan
from dynaquant_core.store.chain import open_chain
from dynaquant_core.store.merge import merge
from dynaquant_core.store.parts import Base
from dynaquant_core.store.pins import read_pins
from dynaquant_core.store.retention import Policy, kept

__all__ = ["SuperSteps", "due", "stand_in"]

logger = logging.getLogger(__name__)


class Linked(Protocol):
    """What the plan knows about one file of a chain."""

    @property
    def sequence(self) -> int:
        """Position in the order of commits; revisions share it."""
        ...

    @property
    def links(self) -> int:
        """How many links it stands for already."""
        ...


AnyLinked = TypeVar("AnyLinked", bound=Linked)


def due(chain: Sequence[AnyLinked], wanted: Collection[int], period: int) -> tuple[int, int] | None:
    """Which links of a chain to merge now.

    A run of links goes from one checkpoint that stays (wanted, a super step, or the key) to the next that is
    wanted.  It is due when it has ``period`` links, but never fewer than there are files above it, which are
    to be written anew: so each file is, on average, written anew about once.  If a merge fails or would gain
    nothing, the run comes up again after another ``period`` links.

    Args:
        chain: key first.
        wanted: sequences of the checkpoints that stay for their own sake; the last one's is among them.
        period: links that make a super step, at least 2.

    Returns:
        Positions of the base and of the link that shall stand for all after it; None: nothing is due.

    Example:
        >>> from dynaquant_core.store.meta import Meta
        >>> chain = [Meta(10 * n, n, 0, None, {}) for n in range(5)]
        >>> due(chain, {4}, 4), due(chain, {4}, 3), due(chain, {2, 4}, 2)
        ((0, 4), None, (2, 4))
    """
    bottom, found = 0, None
    for place, link in enumerate(chain):
        stays = link.sequence in wanted
        needs = max(period, len(chain) - 1 - place)
        run = place - bottom
        if stays and link.links == 1 and run >= needs and (run - needs) % period == 0:
            found = bottom, place
        if stays or link.links > 1:
            bottom = place
    return found


def stand_in(scan: Scan, entry: Entry) -> Entry:
    """The newest revision of a file: of the same bits, perhaps on another base."""
    return max(
        (other for other in scan.entries if other.meta.sequence == entry.meta.sequence),
        key=lambda other: other.order,
    )


class SuperSteps:
    """Merges links of one folder; its caller holds the store's lock.

    Args:
        folder: the store; it exists when `merge` is called.
        catalogue: of the same folder.
        policy: what stays.
        own: the store's method object.
    """

    def __init__(self, folder: Path, catalogue: Catalogue, policy: Policy, own: Method | None) -> None:
        self._folder = folder
        self._catalogue = catalogue
        self._policy = policy
        self._own = own

    @plainly
    def merge(self, period: int) -> Base | None:
        """Merges what is due below the newest checkpoint.

        A kill at any moment leaves whole files, and the newest is what it was: each new file is committed
        before the next is begun, and none is removed here.

        Args:
            period: links that make a super step; 0: none are made.

        Returns:
            What the next delta may be written against, as a reader holds it; None where the newest
            checkpoint is still the file that it was.

        Raises:
            CorruptFileError, MissingBaseError, StorageError: a file cannot be read, or none can be written.
        """
        if period == 0:
            return None
        scan = self._catalogue.scan()
        chain = _chain_of_newest(scan)
        wanted = {entry.meta.sequence for entry in kept(scan.entries, self._policy, read_pins(self._folder))}
        run = due([entry.meta for entry in chain], wanted, period)
        if run is None:
            return None
        base = stand_in(scan, chain[run[0]])
        for entry in chain[run[1] :]:
            new = merge(self._catalogue.scan(), entry, base, self._own)
            if new is None:
                return None
            base = new
        with open_chain(self._catalogue.scan(), base, self._own) as merged:
            return merged.base(merged.hold())


def _chain_of_newest(scan: Scan) -> list[Entry]:
    """The files below the newest one, key first; none where one is missing."""
    found: list[Entry] = []
    entry: Entry | None = scan.newest_first()[0]
    while entry is not None:
        found.append(entry)
        entry = scan.by_digest(entry.base_digest or "")
    return found[::-1] if found[-1].base_digest is None else []
