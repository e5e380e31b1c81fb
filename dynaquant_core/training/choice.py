"""Which draft to store: the smallest that keeps the threshold, or a careful fixed one."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor

from dynaquant_core.errors import EvaluationError
from dynaquant_core.methods.base import Draft, Method, Space
from dynaquant_core.search.manager import Manager
from dynaquant_core.search.memory import SearchState
from dynaquant_core.search.quality import Mode, Quality
from dynaquant_core.search.spoilt import SpoiltDraft, spoilable
from dynaquant_core.training.evaluation import Evaluation
from dynaquant_core.training.movement import Movement, Start
from dynaquant_core.training.trial import Trial

__all__ = ["Choice", "Chooser", "Drafting", "Promise", "Question", "Verdict", "manager_for", "search_alone"]

logger = logging.getLogger(__name__)


class Drafting(Protocol):
    """A save in the making, as the store hands it out."""

    @property
    def space(self) -> Space:
        """What may be tried."""
        ...

    @property
    def live(self) -> Mapping[str, Tensor]:
        """The model's own tensors that a draft replaces."""
        ...

    def tell_moved(self, moved: Mapping[str, float]) -> None:
        """Tells drafts how far the live tensors have moved."""
        ...

    def draft(self, config: Any) -> Draft:
        """A candidate of the live tensors."""
        ...


@dataclass(frozen=True, slots=True)
class Promise:
    """What a checkpoint may lose.

    Args:
        evaluation: measures the live model.
        threshold: allowed relative degradation, a share (0.01 = 1%).
        mode: whether the metric is to be minimised ("min") or maximised ("max").
    """

    evaluation: Evaluation
    threshold: float
    mode: Mode


@dataclass(frozen=True, slots=True)
class Choice:
    """What to store.

    Args:
        draft: the chosen one.
        report: quality, degradation, met, evaluations, exhaustive and the state of the search, for the file.
        search_seconds: time spent on the reference and on candidates, the chosen draft's making left out.
        draft_seconds: time spent making the chosen draft.
        error: why there was no search although one was asked for; ``draft`` is then exact.
    """

    draft: Draft
    report: dict[str, Any] = field(default_factory=dict)
    search_seconds: float = 0.0
    draft_seconds: float = 0.0
    error: EvaluationError | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a search ended.

    Args:
        draft: the chosen one.
        report: of the search, for the file.
        state: for the next search.
    """

    draft: Draft
    report: dict[str, Any]
    state: SearchState


@dataclass(frozen=True, slots=True)
class Question:
    """What the search of one save is about.

    Args:
        saving: the save.
        draft: makes its drafts.
        promise: what to keep.
        manager: of the search.
        state: of the last search.
        movement: notes what candidates lose of it, where that can be known.
    """

    saving: Drafting
    draft: Callable[[Any], Draft]
    promise: Promise
    manager: Manager
    state: SearchState
    movement: Movement | None = None

    def measured(self, trial: Trial, draft: Draft) -> Quality:
        """The quality of what a reader would get of a candidate, and what that loses of the movement.

        A spoilt candidate that cannot be evaluated has none.
        """
        if isinstance(draft, SpoiltDraft):
            return _of_spoilt(trial, draft)
        if self.movement is None:
            return trial.measure(draft.decoded)
        passing = self.movement.watch(draft.decoded)
        return replace(trial.measure(passing), lost=passing.lost)

    def lost(self, draft: Draft) -> dict[str, Any]:
        """What a draft loses of the movement, for the report, where it is known; nothing is evaluated."""
        if self.movement is None:
            return {}
        passing = self.movement.watch(draft.decoded)
        for _ in passing:
            continue
        return {} if passing.lost is None else passing.lost.report()


def _of_spoilt(trial: Trial, draft: Draft) -> Quality:
    try:
        return trial.measure(draft.decoded)
    except EvaluationError:  # it was seen, which is all that is asked
        return Quality((math.nan,))


def search_alone(question: Question) -> Verdict:
    """One candidate after the other, in this process; the live tensors end as they were.

    Raises:
        EvaluationError: evaluate failed, or the reference is not finite.
    """
    promise = question.promise
    with Trial(question.saving.live, promise.evaluation) as trial:
        reference = trial.reference()
        decision = question.manager.choose(
            question.saving.space,
            question.draft,
            lambda draft: question.measured(trial, draft),
            reference,
            promise.threshold,
            promise.mode,
            question.state,
        )
    return Verdict(decision.draft, decision.report(reference), decision.state)


def manager_for(method: Method) -> Manager:
    """The search's manager, with the rules that the method's options ask for (``profile="paper"``)."""
    return Manager(profile=method.options().get("profile"))


class Chooser:
    """Chooses one draft a save, remembering what it learnt.

    Args:
        promise: what to keep; None: the method's careful default is taken, which is said once in the log.
        manager: of the search.

    Attributes:
        manager: of the search; put another where a restore brought another method.
        state: of the search; put a restored one here.
        start: weights that this life began from; None: what a checkpoint loses of the movement since then is
            not recorded.
    """

    def __init__(self, promise: Promise | None, manager: Manager) -> None:
        self.state = SearchState()
        self.start: Start | None = None
        self.manager = manager
        self._promise = promise
        self._said = False

    def choose(
        self,
        saving: Drafting,
        search: Callable[[Question], Verdict] = search_alone,
        *,
        threshold: float | None = None,
    ) -> Choice:
        """Drafts and, where there is a promise, measures; the live tensors end as they were.

        An evaluate that fails, and a reference that is not finite, give the exact draft and the error.  One
        that does not depend on what is stored gives the method's careful default, as without a promise.

        Args:
            saving: the save.
            search: answers the question and raises as `search_alone`.
            threshold: of this save alone, from which the next search learns nothing; None: the promise's.
        """
        if self._promise is None:
            return self._default(saving)
        promise = self._promise if threshold is None else replace(self._promise, threshold=threshold)
        started = time.perf_counter()
        movement = None if self.start is None else Movement(self.start, saving.live)
        if movement is not None:
            saving.tell_moved(movement.moved)
        drafts = _Timed(spoilable(saving.draft))
        question = Question(saving, drafts, promise, self.manager, self.state, movement)
        try:
            verdict = search(question)
        except EvaluationError as error:
            return self._exact(saving, error, time.perf_counter() - started)
        if threshold is None:
            self.state = verdict.state
        making = drafts.seconds(verdict.draft)
        known = {"mode": promise.mode, "search_state": self.state.as_dict()}
        if "met" not in verdict.report:  # no promise, so the choice itself was not measured
            known |= question.lost(verdict.draft)
        return Choice(
            verdict.draft,
            verdict.report | known,
            search_seconds=time.perf_counter() - started - making,
            draft_seconds=making,
        )

    def unsearched(self, saving: Drafting) -> Choice:
        """What keeps the promise without an evaluation: the exact draft; the default where there is none."""
        if self._promise is None:
            return self._default(saving)
        return self._exact(saving, None, 0.0)

    def _default(self, saving: Drafting) -> Choice:
        config = saving.space.default
        if not self._said and saving.live:  # else every bit is kept, whatever the configuration
            self._said = True
            logger.warning("no evaluate: every checkpoint is stored with the fixed configuration %s", config)
        started = time.perf_counter()
        draft = saving.draft(config)
        return Choice(draft, draft_seconds=time.perf_counter() - started)

    def _exact(self, saving: Drafting, error: EvaluationError | None, searched: float) -> Choice:
        started = time.perf_counter()
        draft = saving.draft(saving.space.beyond[-1])
        return Choice(
            draft, search_seconds=searched, draft_seconds=time.perf_counter() - started, error=error
        )


class _Timed:
    """Makes drafts and remembers how long each of the living ones took."""

    def __init__(self, make: Callable[[Any], Draft]) -> None:
        self._make = make
        self._seconds: dict[int, float] = {}

    def __call__(self, config: Any) -> Draft:
        started = time.perf_counter()
        draft = self._make(config)
        self._seconds[id(draft)] = time.perf_counter() - started
        return draft

    def seconds(self, draft: Draft) -> float:
        return self._seconds.get(id(draft), 0.0)
