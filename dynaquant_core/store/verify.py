"""Looks for damage in a store without changing anything."""

from __future__ import annotations

from dynaquant_core.errors import UnknownMethodError
from dynaquant_core.format import FileReader
from dynaquant_core.methods.base import Method
from dynaquant_core.store.catalogue import Entry, Scan
from dynaquant_core.store.chain import Chain, open_chain
from dynaquant_core.store.info import Problem
from dynaquant_core.store.reader import FALLBACK_ERRORS
from dynaquant_core.store.restore import whole_state

__all__ = ["verify"]


def verify(scan: Scan, own: Method | None, *, deep: bool) -> list[Problem]:
    """Every file in ``scan`` that is damaged or builds on one that is, with the reason, oldest first.

    Args:
        scan: a look at the folder.
        own: the store's method object.
        deep: decode every tensor too.
    """
    problems = list(scan.damaged)
    broken: dict[str, str] = {}  # digest -> file name
    for entry in scan.entries:
        reason = _problem(scan, entry, own, deep=deep)
        if reason is None and entry.base_digest in broken:  # whole itself, and of no use
            reason = f"it builds on {broken[entry.base_digest]}, which cannot be read; load another step."
        if reason is not None:
            broken[entry.digest] = entry.path.name
            problems.append(Problem(entry.path.name, entry.step, reason))
    return problems


def _problem(scan: Scan, entry: Entry, own: Method | None, *, deep: bool) -> str | None:
    try:
        with FileReader(entry.path) as reader:
            reader.verify()  # this file's own bytes; its bases have their turn
        with open_chain(scan, entry, own) as chain:
            if deep:
                _decode(chain)
    except (*FALLBACK_ERRORS, UnknownMethodError) as error:
        return str(error)
    return None


def _decode(chain: Chain) -> None:
    whole_state(chain.last, chain.hold(), None)
