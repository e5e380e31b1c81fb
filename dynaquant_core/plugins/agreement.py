"""Before ranks search together: do all hold the same base, and is every one of them well?  And after it.

What a candidate decodes to depends on the base that it is drafted against.  A rank that resumed from
elsewhere, or whose writer failed to commit what the others have counted on, would measure something else.
Rank 0 compares, and its word holds for all: a rank that comes too late hears what the others heard.
A search that ended in an error ends the training as a rule, and the first rank to leave may take the whole
job with it: so the others stay until the writer has committed.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import distributed

from dynaquant_core.errors import ConfigError, EvaluationError, SaveError
from dynaquant_core.plugins.of_group import OfGroup

if TYPE_CHECKING:
    from dynaquant_core.plugins.board import Board

__all__ = [
    "DEADLINE",
    "OWN_SHARE",
    "WORD",
    "Stand",
    "await_commit",
    "compared",
    "deadline",
    "on_all_ranks",
    "rank",
    "ranks",
    "require_all_well",
    "tell_commit",
    "tell_failure",
]

#: Environment variable: seconds that ranks wait for each other while a configuration is chosen.
DEADLINE = "DYNAQUANT_DEADLINE"
DEADLINE_SECONDS = 600.0

#: Rank 0's share of the deadline; the others wait longer, to hear from it whom it has waited for.
OWN_SHARE = 0.75

#: Note of rank 0: what came of a comparison.
WORD = "word"

#: Seconds that rank 0, whose store it is, stays for those that have come to hear of a failure.
HEARING = 10.0

#: Note of the writer: nobody needs to wait for it any more.
COMMITTED = "committed"

#: Step -> comparisons begun at it: names that none before has used, the same on all ranks.
_begun: OfGroup[Counter[int]] = OfGroup(Counter)


@dataclass(frozen=True, slots=True)
class Stand:
    """Where one rank stands.

    Args:
        lineage: of the base that its drafts are made against; None: it has none.
        key_bytes, newest_bytes, spared: stored bytes of that base (`parts.Base`); the writer's are true.
        method: name and options of the method that it drafts with.
        measures: whether it has an ``evaluate`` to search by; None: nothing is searched.
        problem: what went wrong before; None: nothing.
    """

    lineage: str | None = None
    key_bytes: int = 0
    newest_bytes: int = 0
    spared: int = 0
    method: str = ""
    measures: bool | None = None
    problem: str | None = None

    @classmethod
    def failed(cls, problem: Exception) -> Stand:
        """That of a rank which cannot go on."""
        return cls(problem=f"{type(problem).__name__}: {problem}")


def compared(step: int, own: Stand, together: Callable[[], None] | None = None) -> list[Stand]:
    """The stands of all ranks, by rank; every rank calls it at the same step.

    Args:
        step: completed optimizer steps.
        own: of this rank.
        together: called on rank 0 where all are there and well, before one of them goes on.

    Raises:
        SaveError: another rank has a problem; names it.
        ConfigError: some of the ranks have an ``evaluate`` and others none; names one of each.
        EvaluationError: a rank is silent for as long as the deadline; names it.
    """
    _begun()[step] += 1
    board = _board(step)
    board.post(f"{board.rank}", asdict(own))
    stands = _gathered(board, together) if board.rank == 0 else _heard(board)
    for number, stand in enumerate(stands):
        if stand.problem is not None and own.problem is None:
            raise SaveError(f"rank {number} of {board.ranks}: {stand.problem}")
    _require_all_measure(stands)
    return stands


def _require_all_measure(stands: list[Stand]) -> None:
    """A rank that has nothing to measure with would not come to the search, and the others wait for it."""
    said = [stand.measures for stand in stands]
    if True in said and False in said:
        one, other = said.index(True), said.index(False)
        raise ConfigError(
            f"rank {one} of {len(said)} was given an evaluate and rank {other} none: give every process the "
            "same, as all of them measure."
        )


def _are_well(stands: list[Stand]) -> bool:
    with suppress(ConfigError):
        _require_all_measure(stands)
        return all(stand.problem is None for stand in stands)
    return False


def _gathered(board: Board, together: Callable[[], None] | None) -> list[Stand]:
    """The stands, which the others hear of from rank 0 alone: all come to the same, early or late."""
    try:
        notes = board.gather({rank: f"{rank}" for rank in range(board.ranks)}, OWN_SHARE * deadline())
    except EvaluationError as error:
        tell_failure(board, {"error": str(error)})
        raise
    board.clear_others()
    found = [Stand(**notes[rank]) for rank in range(board.ranks)]
    word = {"stands": [asdict(stand) for stand in found]}
    if not _are_well(found):
        tell_failure(board, word)
    else:
        if together is not None:
            together()
        board.post(WORD, word)
    return found


def tell_failure(board: Board, word: Mapping[str, Any]) -> None:
    """Posts a word after which rank 0 may leave, and its store with it: those that are there have heard then.

    Args:
        board: on which each of the others has put a note of its number, if it is there.
        word: of rank 0; who reads it puts up "NUMBER/heard".
    """
    board.expect(f"{rank}/heard" for rank in range(1, board.ranks))
    there = [rank for rank in range(1, board.ranks) if board.has(f"{rank}")]
    with suppress(EvaluationError):
        board.post(WORD, word)
        if there:
            board.gather({rank: f"{rank}/heard" for rank in there}, min(HEARING, deadline()))


def _heard(board: Board) -> list[Stand]:
    word = board.read(WORD, 0, deadline())
    stands = [Stand(**note) for note in word.get("stands", ())]
    if not stands or not _are_well(stands):
        with suppress(EvaluationError):
            board.post(f"{board.rank}/heard", {})
    if "error" in word:
        raise EvaluationError(word["error"])
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


@contextmanager
def on_all_ranks(step: int) -> Iterator[None]:
    """What fails inside, here or on another rank, is raised on all of them; every rank enters.

    So nobody is left in what the ranks do together next.  An `EvaluationError` passes alone: of a search that
    failed the others have heard before, and only the one that writes is still there.

    Raises:
        SaveError, EvaluationError: as `compared`.
    """
    problem: Exception | None = None
    try:
        yield
    except EvaluationError:
        raise
    except Exception as error:  # noqa: BLE001 - raised below, when the others know
        problem = error
    require_all_well(step, problem)


def tell_commit(step: int) -> None:
    """Lets go on who waits in `await_commit`; the writer calls it, whatever came of the commit."""
    if ranks() > 1:
        with suppress(EvaluationError):  # nobody is left to hear it
            _board(step).post(COMMITTED, {})


def await_commit(step: int) -> None:
    """Waits until the writer is done with the save that was agreed upon last.

    That is at most the deadline since it was last heard of: one that was silent for so long has had its time.
    """
    board = _board(step)
    left = deadline() - (time.monotonic() - board.heard())
    with suppress(EvaluationError):  # the error that led here is the one to tell
        board.read(COMMITTED, 0, max(0.0, left))


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

    return Board(f"stand/{step}.{_begun()[step]}", deadline())
