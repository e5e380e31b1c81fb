"""Before ranks search together: do all hold the same base, and is every one of them well?

What a candidate decodes to depends on the base that it is drafted against.  A rank that resumed from
elsewhere, or whose writer failed to commit what the others have counted on, would measure something else.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass

from torch import distributed

from dynaquant_core.errors import ConfigError, SaveError

__all__ = ["DEADLINE", "Stand", "compared", "deadline", "rank", "ranks"]

#: Environment variable: seconds that ranks wait for each other while a configuration is chosen.
DEADLINE = "DYNAQUANT_DEADLINE"
DEADLINE_SECONDS = 600.0

#: Step -> comparisons begun at it: names that none before has used, the same on all ranks.
_begun: Counter[int] = Counter()


@dataclass(frozen=True, slots=True)
class Stand:
    """Where one rank stands.

    Args:
        lineage: of the base that its drafts are made against; None: it has none.
        key_bytes, newest_bytes: stored bytes of that base's weights; the writer's are true.
        method: name and options of the method that it drafts with.
        problem: what went wrong before; None: nothing.
    """

    lineage: str | None = None
    key_bytes: int = 0
    newest_bytes: int = 0
    method: str = ""
    problem: str | None = None


def compared(step: int, own: Stand) -> list[Stand]:
    """The stands of all ranks, by rank; every rank calls it at the same step.

    Raises:
        SaveError: another rank has a problem; names it.
        EvaluationError: a rank is silent for as long as the deadline; names it.
    """
    from dynaquant_core.plugins.board import Board  # not every torch is built for it

    _begun[step] += 1
    board = Board(f"stand/{step}.{_begun[step]}")
    board.post(f"{board.rank}", asdict(own))
    notes = board.gather({rank: f"{rank}" for rank in range(board.ranks)}, deadline())
    stands = [Stand(**notes[rank]) for rank in range(board.ranks)]
    for number, stand in enumerate(stands):
        if stand.problem is not None and own.problem is None:
            raise SaveError(f"rank {number} of {board.ranks}: {stand.problem}")
    return stands


def ranks() -> int:
    """How many processes train together."""
    together = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if together else 1


def rank() -> int:
    """The number of this one among them."""
    return distributed.get_rank() if ranks() > 1 else 0


def deadline() -> float:
    """Seconds that ranks wait for each other.

    Raises:
        ConfigError: the environment says something else than a number above 0.

    Example:
        >>> deadline()
        600.0
    """
    text = os.environ.get(DEADLINE, "")
    try:
        seconds = float(text) if text else DEADLINE_SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{DEADLINE} must be a number of seconds above 0, got {text!r}.")
    return seconds
