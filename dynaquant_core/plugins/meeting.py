"""Saves that every process of a job begins by itself: do all come, and from which step is it?

Most frameworks count steps and save for all ranks at once.  In a loop of the user's own each counts for
itself, and comes by itself: inputs may be uneven (`Join`), and one process alone may save, as natively.
So boards are numbered here, not named by steps, and rank 0's word holds for all: its step, and whether it
has gone on without those that did not come.  Who comes too late reads it and waits for nobody.  Who was not
there for some words, as a process that seldom saves, passes over those that are older than its own step.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from dynaquant_core.errors import EvaluationError, SaveError
from dynaquant_core.plugins.agreement import OWN_SHARE, WORD, deadline, rank, ranks, tell_failure
from dynaquant_core.plugins.board import Board
from dynaquant_core.plugins.of_group import OfGroup

__all__ = ["Meeting"]

logger = logging.getLogger(__name__)

#: Seconds that rank 0 waits at most where it may go on without the others.
PATIENCE = 30.0


@dataclass(slots=True)
class _Way:
    """Where a process is.

    Args:
        last: number of the board that it came to, or passed over, last.
        deserted: whether rank 0, which this is, has left that one alone.
    """

    last: int = 0
    deserted: bool = False


_way: OfGroup[_Way] = OfGroup(_Way)


@dataclass(frozen=True, slots=True)
class Arrival:
    """How one rank comes.

    Args:
        step: completed optimizer steps, by its own count.
        since: step of the checkpoint that it went on from; None: it began anew.
        problem: what went wrong there before; None: nothing.
    """

    step: int
    since: int | None
    problem: str | None


class Meeting:
    """One save to which the ranks come; in a job of one there is nothing to do.

    Args:
        step: completed optimizer steps, by this rank's count.
        since: step of the checkpoint that this rank went on from; None: it began anew.
        call: what the user calls on every process, for errors.
        alone: whether rank 0 may save without the others: nothing in its save waits for them then.

    Attributes:
        step: that of rank 0, once they have met.
        together: whether they have met; else rank 0 saves without the others, and a rank that comes later
            must wait for nobody.
    """

    def __init__(self, step: int, since: int | None, *, call: str, alone: bool) -> None:
        self.step, self.together = step, True
        self._since, self._call, self._alone = since, call, alone

    def come(self, step: int, problem: Exception | None) -> None:
        """For `PluginRun.meet`; every rank calls it.  ``problem`` is raised once the others have heard.

        Raises:
            SaveError: another rank has a problem, or ranks stand at other steps since they went on from other
                checkpoints; names them.
            EvaluationError: a rank does not come, and this one cannot go on without it; names it.
        """
        own = Arrival(step, self._since, None if problem is None else f"{type(problem).__name__}: {problem}")
        if ranks() > 1:
            word = self._lead(own) if rank() == 0 else self._follow(own)
            self._take(own, word)
        if problem is not None:
            raise problem

    def _lead(self, own: Arrival) -> Mapping[str, Any]:
        before = self._board(_way().last)
        board = self._next(_way().last + 1)
        others = {number: f"{number}" for number in range(1, board.ranks)}
        patience = OWN_SHARE * deadline()
        if self._alone:
            still = _way().deserted and not all(map(before.has, others.values()))
            patience = 0.0 if still else min(PATIENCE, patience)
        _way().deserted = False
        try:
            notes = board.gather(others, patience, self._how)
        except EvaluationError as error:
            word = {"step": own.step, "alone": self._alone, "error": str(error)}
            if not self._alone:
                tell_failure(board, word)
                return word
            _way().deserted = True
            board.post(WORD, word)
            if patience > 0:
                logger.warning("rank 0 saves by itself, without a search: %s", error)
            return word
        board.clear_others()
        arrivals = [asdict(own), *(notes[number] for number in others)]
        word = {"step": own.step, "alone": False, "arrivals": arrivals}
        if _trouble(arrivals) is None:
            board.post(WORD, word)
        else:
            tell_failure(board, word)
        return word

    def _follow(self, own: Arrival) -> Mapping[str, Any]:
        number, past = _way().last + 1, None
        while (board := self._board(number)).has(WORD):  # rank 0 was there without this one
            past, number = board.read(WORD, 0, deadline(), self._how), number + 1
        if past is not None and past["step"] >= own.step:
            self._board(number - 1).post(f"{rank()}", asdict(own))  # it has come after all
            _way().last = number - 1
            return past
        board = self._next(number)
        board.post(f"{rank()}", asdict(own))
        word = board.read(WORD, 0, deadline(), self._how)
        if "error" in word or _trouble(word["arrivals"]) is not None:
            with suppress(EvaluationError):
                board.post(f"{rank()}/heard", {})
        return word

    def _take(self, own: Arrival, word: Mapping[str, Any]) -> None:
        self.step = word["step"]
        if word["alone"]:
            self.together = False
            if rank() > 0:
                logger.warning("this process came too late for step %d: %s", self.step, word["error"])
            return
        if "error" in word:
            raise EvaluationError(word["error"])
        trouble = _trouble(word["arrivals"])
        if trouble is not None and own.problem is None:
            raise SaveError(trouble)

    def _next(self, number: int) -> Board:
        _way().last = number
        return self._board(number)

    def _board(self, number: int) -> Board:
        return Board(f"meet/{number}", deadline(), self._how)

    @property
    def _how(self) -> str:
        how = f"when rank {rank()} called {self._call}: every process must call it, not the main one alone"
        slow = " (where one is only slow, a longer DYNAQUANT_DEADLINE gives it more time)"
        return how if self._alone and rank() == 0 else how + slow


def _trouble(arrivals: list[dict[str, Any]]) -> str | None:
    """One sentence that says why ranks cannot save together, or None.

    Steps alone may differ; where the checkpoints that ranks went on from differ too, so do their weights.
    """
    first = Arrival(**arrivals[0])
    for number, arrival in enumerate(Arrival(**each) for each in arrivals):
        if arrival.problem is not None:
            return f"rank {number} of {len(arrivals)}: {arrival.problem}"
        if arrival.step != first.step and arrival.since != first.since:
            return (
                f"rank {number} of {len(arrivals)} is at step {arrival.step}, {_whence(arrival)}, and rank 0 "
                f"at step {first.step}, {_whence(first)}: restore the same checkpoint in every process."
            )
    return None


def _whence(arrival: Arrival) -> str:
    return "from the beginning" if arrival.since is None else f"restored at step {arrival.since}"
