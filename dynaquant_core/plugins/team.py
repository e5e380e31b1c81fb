"""How rank 0 leads a shared search, and how the other ranks follow.

Each round is a plan that rank 0 puts up and one answer from every rank that it gives a job.  The first evens
out buffers; the last one holds the decision, or what went wrong.

Sharing takes an ``evaluate`` that is a rank's own affair (`manner`).  One that uses collectives, or gives
another value on another rank, has all ranks measure the same candidate, and rank 0's value counts.  Where
that shows while each measures one of its own, what the search has measured is dropped, and it begins anew.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from itertools import count
from typing import Any

from dynaquant_core.errors import EvaluationError
from dynaquant_core.methods.base import Draft
from dynaquant_core.plugins.board import Board
from dynaquant_core.plugins.buffers import Buffers
from dynaquant_core.plugins.manner import FEWEST_SIZES, Note, Terms, quality_of, traffic
from dynaquant_core.search.grid import Spot
from dynaquant_core.search.manager import Decision, announce
from dynaquant_core.search.memory import SearchState
from dynaquant_core.search.quality import Quality
from dynaquant_core.search.speculate import SIZES, Speculation
from dynaquant_core.search.spoilt import is_spoilt
from dynaquant_core.store.parts import config_data
from dynaquant_core.training.choice import Question, Verdict
from dynaquant_core.training.trial import Trial

__all__ = ["follow", "lead"]

logger = logging.getLogger(__name__)

#: Candidates that rank 0 sizes at most to look ahead, while the other ranks wait.
MOST_SIZES = SIZES
#: Sizing them may take this share of one measurement's time.
SIZING = 0.5

Make = Callable[[Any], Draft]

#: What a plan may ask for; one without any of it is the last.
JOBS = frozenset({"compare", "borrow", "jobs"})

#: What may be asked of a rank besides the config of a candidate: the model as it is.
REFERENCE: Note = {"reference": True}


def lead(board: Board, question: Question, terms: Terms, *, patience: float) -> Verdict:
    """Rank 0's part.

    Args:
        board: of this search.
        question: what the search is about.
        terms: of the run; changed.
        patience: seconds to wait for an answer.

    Raises:
        EvaluationError: a rank failed or was silent; names it.
    """
    drafts, promise = _Kept(question.draft), question.promise
    with Trial(question.saving.live, promise.evaluation) as trial:
        desk = _Desk(trial, question, drafts)
        leader = _Leader(board, desk, terms, promise.threshold, patience)
        try:
            leader.lend(Buffers(promise.evaluation.models))
            decision, reference = leader.run(lambda: _speculation(question, drafts))
            announce(decision)
            verdict = Verdict(drafts(decision.config), decision.report(reference), decision.state)
            leader.post({"config": config_data(decision.config), "report": verdict.report})
        except BaseException as error:
            with suppress(EvaluationError):
                leader.post({"error": _told(error, board)})
            raise
    worth = SIZING * desk.seconds / max(drafts.seconds, 1e-9)
    terms.sizes = int(min(max(worth, FEWEST_SIZES), MOST_SIZES))
    return verdict


def _speculation(question: Question, drafts: Make) -> Speculation:
    promise, space = question.promise, question.saving.space
    return Speculation(
        question.manager,
        space,
        lambda config: drafts(config).size,
        promise.threshold,
        promise.mode,
        question.state,
    )


def follow(board: Board, question: Question, *, patience: float) -> Verdict:
    """Every other rank's part: does what the plans say.

    Raises:
        EvaluationError: a rank failed or was silent; names it.
    """
    cause: Exception | None = None
    buffers = Buffers(question.promise.evaluation.models)
    with Trial(question.saving.live, question.promise.evaluation) as trial:
        desk = _Desk(trial, question, question.draft)
        try:
            for number in count():
                plan = board.read(f"{number}", 0, patience)
                if not JOBS.intersection(plan):
                    break
                note = f"{number}/{board.rank}"
                if "compare" in plan:
                    board.post(note, {"differing": buffers.differing(plan["compare"])})
                elif "borrow" in plan:
                    buffers.borrow(plan["borrow"])
                else:
                    answer, cause = _answered(board, note, desk, plan["jobs"][board.rank])
                    board.post(note, answer)
        finally:
            buffers.give_back()
    if "error" in plan:
        raise EvaluationError(plan["error"]) from cause
    report = plan["report"]
    return Verdict(question.draft(plan["config"]), report, SearchState.from_dict(report["search_state"]))


def _answered(board: Board, note: str, desk: _Desk, job: Note) -> tuple[Note, Exception | None]:
    """The answer to a job; where this rank is told to stop, the others hear of it."""
    try:
        return desk.answer(job)
    except BaseException as error:
        with suppress(EvaluationError):
            board.post(note, {"error": f"it was stopped ({type(error).__name__})"})
        raise


class _Desk:
    """Where a rank does its jobs."""

    def __init__(self, trial: Trial, question: Question, draft: Make) -> None:
        self.seconds = 0.0  # that the last job took
        self._trial = trial
        self._question = question
        self._draft = draft

    def answer(self, job: Note) -> tuple[Note, Exception | None]:
        """What measuring gave, JSON-ready, and the exception if it failed."""
        before, started = traffic(), time.perf_counter()
        try:
            quality = self._trial.reference() if job == REFERENCE else self._measured(job["config"])
        except EvaluationError as error:
            if is_spoilt(job.get("config")):  # it may fail; what knows nothing then says nothing
                return {"values": [math.nan], "lost": None, "collective": traffic() != before}, None
            return {"error": str(error)}, error
        except Exception as error:
            logger.exception("a candidate could not be measured")
            return {"error": f"{type(error).__name__}: {error}"}, error
        self.seconds = time.perf_counter() - started
        lost = None if quality.lost is None else astuple(quality.lost)
        return {"values": quality.values, "lost": lost, "collective": traffic() != before}, None

    def _measured(self, config: Any) -> Quality:
        return self._question.measured(self._trial, self._draft(config))


class _Leader:
    """Rank 0 at work: rounds of plans and answers."""

    def __init__(self, board: Board, desk: _Desk, terms: Terms, threshold: float, patience: float) -> None:
        self._terms = terms
        self._threshold = threshold
        self._board = board
        self._desk = desk
        self._patience = patience
        self._numbers = count()

    def lend(self, buffers: Buffers) -> None:
        """Gives the others the buffers in which they differ."""
        ranks = range(1, self._board.ranks)
        number = self.post({"compare": buffers.digests()})
        answers = self._board.gather({rank: f"{number}/{rank}" for rank in ranks}, self._patience)
        names = {name for answer in answers.values() for name in answer["differing"]}
        if names:
            self.post({"borrow": buffers.values(names)})

    def run(self, begin: Callable[[], Speculation]) -> tuple[Decision, Quality]:
        """Rounds until the search is decided; the decision and the reference's quality."""
        with suppress(_NotApart):  # the terms know it from then on
            return self._decided(begin())
        return self._decided(begin())

    def _decided(self, search: Speculation) -> tuple[Decision, Quality]:
        terms, ranks = self._terms, self._board.ranks
        spots = search.ahead(ranks - 1, sizes=terms.sizes) if terms.manner == "apart" else []
        reference, *answers = self._round([REFERENCE, *map(_job(search), spots)])
        search.reference = quality_of(reference)
        self._take(search, spots, answers)
        while (decision := search.decision()) is None:
            spots = search.ahead(ranks if terms.manner == "apart" else 1, sizes=terms.sizes)
            self._take(search, spots, self._round([*map(_job(search), spots)]))
        return decision, search.reference

    def post(self, plan: Note) -> int:
        """Puts the next plan up; its number."""
        number = next(self._numbers)
        self._board.post(f"{number}", plan)
        return number

    def _take(self, search: Speculation, spots: Sequence[Spot], answers: Sequence[Note]) -> None:
        for spot, answer in zip(spots, answers, strict=True):
            search.answer(spot, quality_of(answer))

    def _round(self, jobs: Sequence[Note]) -> Sequence[Note]:
        """Has each rank do one of the jobs, in turn; the answers to them, in their order.

        No rank is spared: an ``evaluate`` that has begun to use collectives would wait for it.
        """
        ranks, terms = self._board.ranks, self._terms
        apart = terms.manner == "apart"
        number = self.post({"jobs": [jobs[rank % len(jobs)] for rank in range(ranks)]})
        notes = {rank: f"{number}/{rank}" for rank in range(1, ranks)}
        self._board.expect(notes.values())
        own, cause = self._desk.answer(jobs[0])
        _require_good({0: own}, ranks, cause)
        others = self._board.gather(notes, self._patience)
        _require_good(others, ranks, None)
        self._board.take_down(list(notes.values()))
        answers = [own, *others.values()]
        terms.compare(answers, len(jobs), self._threshold)
        if apart and terms.manner != "apart":
            raise _NotApart
        return answers[: len(jobs)]


class _NotApart(Exception):  # noqa: N818 - a finding, not an error
    """What the ranks have measured apart is good for nothing: they were not."""


class _Kept:
    """Makes drafts and keeps the latest one: what was sized last is often what is measured or chosen next.

    Attributes:
        seconds: that the latest took to make.
    """

    def __init__(self, make: Make) -> None:
        self.seconds = 0.0
        self._make = make
        self._latest: tuple[Any, Draft] | None = None

    def __call__(self, config: Any) -> Draft:
        key = config_data(config)
        if self._latest is None or self._latest[0] != key:
            self._latest = None  # two drafts at once may be too many
            started = time.perf_counter()
            self._latest = key, self._make(config)
            self.seconds = time.perf_counter() - started
        return self._latest[1]


def _job(search: Speculation) -> Callable[[Spot], Note]:
    return lambda spot: {"config": config_data(search.config(spot))}


def _require_good(answers: Mapping[int, Note], ranks: int, cause: Exception | None) -> None:
    for rank, answer in answers.items():
        if "error" in answer:
            raise EvaluationError(f"rank {rank} of {ranks}: {answer['error']}") from cause


def _told(error: BaseException, board: Board) -> str:
    """What the other ranks hear of an error of rank 0."""
    if isinstance(error, EvaluationError):
        return str(error)
    return f"rank 0 of {board.ranks}: {type(error).__name__}: {error}"
