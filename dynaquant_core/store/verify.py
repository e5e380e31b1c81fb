"""Looks for damage in a store without changing anything."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dynaquant_core.arithmetic import plainly
from dynaquant_core.errors import UnknownMethodError
from dynaquant_core.format import FileReader
from dynaquant_core.methods.base import Method
from dynaquant_core.store.catalogue import Entry, Scan
from dynaquant_core.store.chain import Decoded, chain_of, open_chain
from dynaquant_core.store.descriptors import is_out_of_means
from dynaquant_core.store.info import Problem
from dynaquant_core.store.reader import FALLBACK_ERRORS
from dynaquant_core.store.restore import whole_state

__all__ = ["verify"]


@plainly
def verify(look: Callable[[], Scan], own: Method | None, *, deep: bool) -> list[Problem]:
    """Every file that is damaged or builds on one that is, with the reason, oldest first.

    What a writer retires meanwhile is no damage: a file that seems damaged is looked at again where it, or
    what it builds on, is no longer there.

    Args:
        look: looks at the folder.
        own: the store's method object.
        deep: decode every tensor too.
    """
    scan = look()
    asked = {entry.digest for entry in scan.entries}
    while True:
        problems = _problems(scan, asked, own, deep=deep)
        names = {problem.name for problem in problems}
        again = look()
        doubted = [entry for entry in scan.entries if entry.path.name in names]
        if all(_chain(scan, entry) == _chain(again, entry) for entry in doubted):
            return problems
        asked = {entry.digest for entry in doubted}  # fewer each time
        scan = again


def _chain(scan: Scan, entry: Entry) -> list[str]:
    """The files that are there of an entry and all that it builds on."""
    found: list[str] = []
    below: Entry | None = scan.by_digest(entry.digest)
    while below is not None and below.path.name not in found:
        found.append(below.path.name)
        below = scan.by_digest(below.base_digest or "")
    return found


def _problems(scan: Scan, asked: Collection[str], own: Method | None, *, deep: bool) -> list[Problem]:
    """Those of one look at the folder, of the files that are asked about."""
    problems = list(scan.damaged)
    broken: dict[str, str] = {}  # digest -> file name
    decoder = Decoder(scan, own) if deep else None
    for entry in scan.entries:
        if entry.digest not in asked:
            continue
        reason = _problem(scan, entry, decoder)
        if reason is None and entry.base_digest in broken:  # whole itself, and of no use
            reason = f"it builds on {broken[entry.base_digest]}, which cannot be read; load another step."
        if reason is not None:
            broken[entry.digest] = entry.path.name
            problems.append(Problem(entry.path.name, entry.step, reason))
    return problems


def _problem(scan: Scan, entry: Entry, decoder: Decoder | None) -> str | None:
    try:
        with FileReader(entry.path) as reader:
            reader.verify()  # this file's own bytes; its bases have their turn
        chain_of(scan, entry)
        if decoder is not None:
            decoder.decode(entry)
    except (*FALLBACK_ERRORS, UnknownMethodError) as error:
        if is_out_of_means(error):
            raise
        return str(error)
    return None


class Decoder:
    """Decodes checkpoints in full; each goes on from the one decoded before, where it builds on that.

    So a chain takes one pass, not one for each of its files.

    Args:
        scan: of the folder.
        own: the store's method object.
    """

    def __init__(self, scan: Scan, own: Method | None) -> None:
        self._scan, self._own = scan, own
        self._last: Decoded | None = None

    def decode(self, entry: Entry) -> None:
        """Decodes every tensor; raises what a reader of ``entry`` would meet."""
        last, self._last = self._last, None  # lent once: a decoder may go on in its memory
        known = last if last is not None and last.digest == entry.base_digest else None
        del last  # what begins anew needs room for one state, not two
        with open_chain(self._scan, entry, self._own, known) as chain:
            held = chain.hold(whole=True)
            whole_state(chain.last, held, None)
        self._last = Decoded(entry.digest, held)
