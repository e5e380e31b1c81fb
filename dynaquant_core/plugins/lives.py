"""In which of its lives a job is: one that was started again finds in its store what the one before left.

A launcher's store outlives the processes that it starts again, and a rank may have ended before it put
anything there.  So lives are rank 0's: it alone counts them, and each other rank asks it by a token of its
own, which no life before has known.  It answers beside its training, as it may save by itself and go on.
"""

from __future__ import annotations

import atexit
import time
import uuid
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any
from weakref import ref

from torch import distributed

from dynaquant_core.plugins.of_group import OfGroup

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

__all__ = ["life", "newest"]

#: How many lives rank 0 has begun.
COUNT = "count"

#: Seconds between two looks, at first and at most.
SHORTEST, LONGEST = 0.001, 0.1


def newest() -> int:
    """The life that rank 0 is in, as it told last; on rank 0 that of now, elsewhere perhaps the one before.

    Raises:
        RuntimeError: the store fails.
    """
    return _begun() if distributed.get_rank() == 0 else int(_store().add(COUNT, 0))


def life(patience: float) -> int | None:
    """The life of this process group, the same on all of its ranks.

    Args:
        patience: seconds to wait for rank 0 at most, if this is another and has not asked before.

    Returns:
        Its number; None where rank 0 does not answer: it has not come to where ranks meet, or is no more.

    Raises:
        RuntimeError: the store fails.
    """
    known = _known()
    if not known:
        found = _lead() if distributed.get_rank() == 0 else _ask(patience)
        if found is None:
            return None
        known.append(found)
    return known[0]


def _begin() -> int:
    return int(_store().add(COUNT, 1))


#: On rank 0: the life that it has begun in this group.
_begun: OfGroup[int] = OfGroup(_begin)

#: The life of this group, once it is known here.
_known: OfGroup[list[int]] = OfGroup(list)


def _lead() -> int:
    """Rank 0's part: answers from now on, until every other rank knows."""
    found = _begun()
    if others := range(1, distributed.get_world_size()):
        store = _store()
        if hasattr(store, "clone"):  # the training thread may be waiting on that connection
            store = store.clone()
        stop = Event()
        what = store, found, others, ref(distributed.group.WORLD), stop
        thread = Thread(target=_answer, args=what, name="dynaquant-life", daemon=True)
        thread.start()
        atexit.register(_end, thread, stop)
    return found


def _answer(store: Store, found: int, others: range, group: ref[Any], stop: Event) -> None:
    missing, pause = set(others), SHORTEST
    with suppress(RuntimeError):  # the job is gone, and nobody asks
        while missing and not stop.wait(pause) and _is_now(group):  # torch would log a store that is no more
            for rank in sorted(missing):
                if store.check([_knows(found, rank)]):
                    missing.remove(rank)
                elif store.check([_asks(rank)]):
                    if not _is_now(group):
                        return  # who asks is in the next one
                    store.set(_answers(store.get(_asks(rank)).decode()), str(found))
            pause = min(1.5 * pause, LONGEST)


def _is_now(group: ref[Any]) -> bool:
    now = distributed.group.WORLD
    return now is not None and now is group()


def _end(thread: Thread, stop: Event) -> None:
    """A thread that comes back from the store when the interpreter is gone would take the process down."""
    stop.set()
    thread.join(1.0)


def _ask(patience: float) -> int | None:
    """Every other rank's part."""
    store, rank, token = _store(), distributed.get_rank(), uuid.uuid4().hex
    store.set(_asks(rank), token)
    end, pause = time.monotonic() + patience, SHORTEST
    while not store.check([_answers(token)]):
        if time.monotonic() >= end:
            return None
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST)
    found = int(store.get(_answers(token)))
    store.set(_knows(found, rank), "")
    return found


def _asks(rank: int) -> str:
    return f"asks/{rank}"


def _answers(token: str) -> str:
    return f"answers/{token}"


def _knows(found: int, rank: int) -> str:
    return f"{found}/knows/{rank}"


def _store() -> Store:
    from torch.distributed import distributed_c10d  # not every torch is built for it

    return distributed_c10d.PrefixStore("dynaquant/lives", distributed_c10d._get_default_store())
