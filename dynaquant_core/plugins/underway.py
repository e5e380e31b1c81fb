"""Saves that are under way on the rank that writes, for the others to wait for before they load.

They are counted in the job's key-value store, so only who waits has to come: a rank that loads by itself is
left hanging by nobody, as it would be in a barrier.  Each life of rank 0 has counts of its own: a writer that
was killed in the midst of a save has left it unended, and the store may be a launcher's, which stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from dynaquant_core.plugins.agreement import deadline, rank, ranks
from dynaquant_core.plugins.lives import newest

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

__all__ = ["Ended", "await_saves", "begin"]

#: Tells that a save has ended, well or not; from any thread.
Ended = Callable[[], None]

#: How many saves have begun in this job, and how many of them have ended.
BEGUN, ENDED = "begun", "ended"

#: Seconds between two looks.
PAUSE = 0.01


def begin() -> Ended:
    """Tells the other ranks that a save begins; what is returned is to be called once."""
    store = _store() if rank() == 0 else None
    if store is None:
        return _nothing
    if hasattr(store, "clone"):  # a connection of its own: the training thread may be waiting on the other
        store = store.clone()
    now = ""
    with suppress(RuntimeError):
        now = f"{newest()}/"
        store.add(now + BEGUN, 1)

    def ended() -> None:
        with suppress(RuntimeError):  # the job is gone, and nobody waits
            store.add(now + ENDED, 1)

    return ended


def await_saves() -> None:
    """On ranks that do not write: waits for the saves begun so far, at most for the deadline.

    Whoever reads then says what is wrong with a checkpoint that is not there.  The rank that writes waits for
    nothing; where it comes here first in its life, the others hear that saves of the one before have ended.
    """
    store = _store()
    if store is None:
        return
    with suppress(RuntimeError):
        if rank() == 0:
            newest()
            return
        end, of, begun = time.monotonic() + deadline(), None, 0
        while time.monotonic() < end:
            now = newest()
            if now != of:
                of, begun = now, store.add(f"{now}/{BEGUN}", 0)
            if store.add(f"{now}/{ENDED}", 0) >= begun:
                return
            time.sleep(PAUSE)


def _store() -> Store | None:
    if ranks() == 1:
        return None
    from torch.distributed import distributed_c10d

    store = distributed_c10d._get_default_store()
    return None if store is None else distributed_c10d.PrefixStore("dynaquant/underway", store)


def _nothing() -> None:
    return
