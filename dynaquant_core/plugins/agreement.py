"""Before ranks search together: do all hold the same base, and is every one of them well?  And after it.

What a candidate decodes to depends on the base that it is drafted against.  A rank that resumed from
elsewhere, or whose writer failed to commit what the others have counted on, would measure something else.
A search that ended in an error ends the training as a rule, and the first rank to leave may take the whole
job with it: so the others stay until the writer has committed.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from torch import distributed

from dynaquant_core.errors import ConfigError, EvaluationError, SaveError

if TYPE_CHECKING:
    from dynaquant_core.plugins.board import Board

__all__ = [
    "DEADLINE",
    "Stand",
    "await_commit",
    "compared",
    "deadline",
    "rank",
    "ranks",
    "require_all_well",
    "tell_commit",
]

#: Environment variable: seconds that ranks wait for each other while a configuration is chosen.
DEADLINE = "DYNAQUANT_DEADLINE"
DEADLINE_SECONDS = 600.0

#: Note of the writer: nobody needs to wait for it any more.
COMMITTED = "committed"

#: Step -> comparisons begun at it: names that none before has used, the same on all ranks.
_begun: Counter[int] = Counter()


@dataclass(frozen=True, slots=True)
class Stand:
    """Where one rank stands.

    Args:
        lineage: of the base that its drafts are made against; None: it has none.
        key_bytes, newest_bytes, spared: stored bytes of that base (`parts.Base`); the writer's are true.
        method: name and options of the method that it drafts with.
        problem: what went wrong before; None: nothing.
    """

    lineage: str | None = None
    key_bytes: int = 0
    newest_bytes: int = 0
    spared: int = 0
    method: str = ""
    problem: str | None = None

    @classmethod
    def failed(cls, problem: Exception) -> Stand:
        """That of a rank which cannot go on."""
        return cls(problem=f"{type(problem).__name__}: {problem}")


def compared(step: int, own: Stand) -> list[Stand]:
    """The stands of all ranks, by rank; every rank calls it at the same step.

    Raises:
        SaveError: another rank has a problem; names it.
        EvaluationError: a rank is silent for as long as the deadline; names it.
    """
    _begun[step] += 1
    board = _board(step)
    board.post(f"{board.rank}", asdict(own))
    notes = board.gather({rank: f"{rank}" for rank in range(board.ranks)}, deadline())
    if board.rank == 0:
        board.clear_others()
    stands = [Stand(**notes[rank]) for rank in range(board.ranks)]
    for number, stand in enumerate(stands):
        if stand.problem is not None and own.problem is None:
            raise SaveError(f"rank {number} of {board.ranks}: {stand.problem}")
    return stands


def require_all_well(step: int, problem: Exception | None) -> None:
    """Raises ``problem``, where there is one, after the others have heard; every rank calls it.

    Raises:
        SaveError, EvaluationError: as `compared`.
    """
    if ranks() > 1:
        compared(step, Stand() if problem is None else Stand.failed(problem))
    if problem is not None:
        raise problem


def tell_commit(step: int) -> None:
    """Lets go on who waits in `await_commit`; the writer calls it, whatever came of the commit."""
    if ranks() > 1:
        with suppress(EvaluationError):  # nobody is left to hear it
            _board(step).post(COMMITTED, {})


def await_commit(step: int) -> None:
    """Waits until the writer is done with the save that was agreed upon last, at most for the deadline."""
    with suppress(EvaluationError):  # the error that led here is the one to tell
        _board(step).read(COMMITTED, 0, deadline())


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


def _board(step: int) -> Board:
    """That of the comparison begun last."""
    from dynaquant_core.plugins.board import Board  # not every torch is built for it

    return Board(f"stand/{step}.{_begun[step]}")
