"""Looking ahead: which candidates a search will ask for next (ours).

A search is deterministic: run again from its beginning with the same answers it asks for the same candidate.
So it can be run with *assumed* answers too, to see what it would ask for after those.  Candidates found in
this way can be measured side by side, and the decision is the one of the search alone: it is only ever made
from true answers, in the order in which the search asks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import count
from typing import Any, cast

from dynaquant_core.errors import ConfigError
from dynaquant_core.methods.base import Draft, Space
from dynaquant_core.search.grid import Choosable, Grid, Place, Spoilt, Spot
from dynaquant_core.search.manager import Decision, Manager, remembered
from dynaquant_core.search.memory import SearchState
from dynaquant_core.search.quality import Degradation, Goal, Mode, Quality
from dynaquant_core.search.trials import Trial, Trials

__all__ = ["Speculation"]

#: How far a level (doublings of degradation above the threshold) is from the expected one, and how often.
AROUND = ((-0.1, 0.3), (0.2, 0.3), (-0.5, 0.15), (0.6, 0.15), (-1.5, 0.06), (1.5, 0.04))
#: The same for a checkpoint's first candidate: it was chosen for being close to the threshold.
FIRST = (
    (-0.1, 0.22),
    (0.1, 0.13),
    (0.35, 0.18),
    (-0.4, 0.17),
    (0.7, 0.1),
    (-1.2, 0.12),
    (1.8, 0.05),
    (-3.0, 0.03),
)
#: What is expected of an entry beyond the cube: these are careful.
BEYOND = -1.0
#: Searches that are run with assumed answers, for every candidate that is wanted.
RUNS = 6
#: Candidates whose sizes may be asked for on assumptions alone, at one look ahead.
SIZES = 64
#: Assumptions less likely than this are not followed.
UNLIKELY = 1e-3

Assumptions = Mapping[Hashable, Degradation]


class Speculation:
    """A search whose candidates are measured by somebody else, several at a time.

    Args:
        manager: makes the search.
        space: of the method.
        size: bytes of a config's draft; asked once for each.
        threshold: allowed relative degradation, a share (0.01 = 1%).
        mode: "min" or "max".
        state: of the last search.

    Raises:
        ConfigError: threshold or mode is out of range.

    Example:
        >>> space = Space(dict, {"bins": (16, 8, 4)}, {}, {}, ({"bins": "exact"},), None)
        >>> search = Speculation(Manager(), space, lambda c: 100 * c["bins"], 0.02, "min", SearchState())
        >>> search.reference = Quality((1.0,))
        >>> while (decision := search.decision()) is None:
        ...     for spot in search.ahead(3):
        ...         search.answer(spot, Quality((1 + 0.1 / search.config(spot)["bins"],)))
        >>> decision.config
        {'bins': 8}
    """

    def __init__(
        self,
        manager: Manager,
        space: Space,
        size: Callable[[Any], int],
        threshold: float,
        mode: Mode,
        state: SearchState,
    ) -> None:
        self.reference: Quality | None = None
        self._manager = manager
        self._grid = Grid(space)
        self._state = state
        self._threshold, self._mode = threshold, mode
        self._sizes = _Sizes(self._grid, size)
        self._answers: dict[Hashable, Quality] = {}
        self._goal()

    def config(self, spot: Spot) -> Any:
        """The config of a candidate."""
        return self._grid.config(spot)

    def answer(self, spot: Spot, quality: Quality) -> None:
        """What measuring a candidate gave."""
        self._answers[self._grid.key(spot)] = quality

    def decision(self) -> Decision | None:
        """The decision, once every candidate that it takes is answered; None before.

        Its draft is to be made by who has the tensors: the one here has a config and nothing else.

        Raises:
            ConfigError: the reference is not known yet.
            EvaluationError: the reference is not finite, or an answer has another number of batches.
        """
        if self.reference is None:
            raise ConfigError("search: a decision needs the reference's quality; set it first.")
        try:
            return self._run({})
        except _Unanswered:
            return None

    def ahead(self, most: int, *, sizes: int = SIZES) -> list[Spot]:
        """The candidates to measure next: the one that is asked for for certain, then the likeliest.

        Works without a reference as well, as long as nothing is answered.

        Args:
            most: how many to give at most; there may be fewer.
            sizes: how many candidates may be sized that the search may never ask for.
        """
        found: dict[Hashable, Spot] = {}
        self._sizes.allowance = sizes
        for spot in self._asked_for(RUNS * most):
            found.setdefault(self._grid.key(spot), spot)
            if len(found) == most:
                break
        return list(found.values())

    def _asked_for(self, runs: int) -> Iterator[Spot]:
        """What the search asks for under ever less likely assumptions; nothing is assumed at first."""
        order = count()  # settles ties, in favour of what was thought of first
        waiting: list[tuple[float, int, Assumptions]] = [(-1.0, next(order), {})]
        while waiting and (runs := runs - 1) >= 0:
            share, _, assumed = heapq.heappop(waiting)
            try:
                self._run(assumed)
            except _Unanswered as question:
                yield question.spot
                key = self._grid.key(question.spot)
                for each, found in self._guesses(question):
                    if share * each < -UNLIKELY:
                        heapq.heappush(waiting, (share * each, next(order), {**assumed, key: found}))
            except _TooDear:
                continue

    def _run(self, assumed: Assumptions) -> Decision:
        goal = self._goal()
        trials = _Rehearsal(self._grid, self._sizes, goal, self._answers, assumed)
        return self._manager.decide(trials, self._state)

    def _goal(self) -> Goal:
        return Goal(self.reference or Quality((1.0,)), self._threshold, self._mode)

    def _guesses(self, question: _Unanswered) -> Iterator[tuple[float, Degradation]]:
        """What measuring a candidate may give, each with its share."""
        expected, spread = self._expected(question)
        threshold = question.trials.goal.threshold  # what is learnt may have narrowed it
        scale = max(threshold, 1e-9)
        for offset, share in spread:
            level = expected + offset
            worse = scale * 2.0**level
            yield share, Degradation(min(worse, threshold) if level <= 0 else worse)

    def _expected(self, question: _Unanswered) -> tuple[float, tuple[tuple[float, float], ...]]:
        spot, trials, variants = question.spot, question.trials, self._grid.variants
        if not isinstance(spot, Place):
            return BEYOND, AROUND
        if not trials.inside:
            return 0.0, FIRST
        forecast = remembered(self._state, self._grid).learnt(trials.inside, trials.goal, variants)
        level = forecast.level_at(spot, trials.inside, threshold=trials.goal.threshold, variants=variants)
        return level, AROUND


class _Sizes:
    """Sizes of candidates, each asked for once.

    Attributes:
        allowance: how many more may be asked for on assumptions.
    """

    def __init__(self, grid: Grid, size: Callable[[Any], int]) -> None:
        self.allowance = 0
        self._grid = grid
        self._size = size
        self._by_spot: dict[Spot, int] = {}
        self._by_config: dict[Hashable, int] = {}

    def of(self, spot: Spot, *, certain: bool) -> int:
        """The size of a candidate; raises _TooDear where the allowance is spent."""
        if spot not in self._by_spot:
            key = self._grid.key(spot)
            if key not in self._by_config:
                self._by_config[key] = self._asked(spot, certain=certain)
            self._by_spot[spot] = self._by_config[key]
        return self._by_spot[spot]

    def _asked(self, spot: Spot, *, certain: bool) -> int:
        if not certain and self.allowance == 0:
            raise _TooDear
        self.allowance -= not certain
        return self._size(self._grid.config(spot))


class _Rehearsal(Trials):
    """Trials that are answered from a table, and by assumptions."""

    def __init__(
        self, grid: Grid, sizes: _Sizes, goal: Goal, answers: Mapping[Hashable, Quality], assumed: Assumptions
    ) -> None:
        super().__init__(grid, _undrafted, lambda _: goal.reference, goal)  # neither is asked
        self._shared_sizes = sizes
        self._answers = answers
        self._assumed = assumed

    def size(self, spot: Spot) -> int:
        return self._shared_sizes.of(spot, certain=not self._assumed)

    def evaluated(self, spot: Choosable) -> Trial:
        key = self.grid.key(spot)
        if key in self._answers:
            return self.judged(spot, self._answers[key])
        if key in self._assumed:
            found = self._assumed[key]
            return Trial(spot, self.goal.reference, found, self.goal.met(found))
        raise _Unanswered(spot, self)

    def of_spoilt(self, spot: Spoilt) -> Quality | None:
        key = self.grid.key(spot)
        if key not in self._answers and key not in self._assumed:
            raise _Unanswered(spot, self)
        return self._answers.get(key)  # as a rule it is seen, so that is what is assumed


class _Unanswered(Exception):  # noqa: N818 - a question, not an error
    """The search asked for a candidate that is neither answered nor assumed."""

    def __init__(self, spot: Spot, trials: Trials) -> None:
        super().__init__(spot)
        self.spot = spot
        self.trials = trials


class _TooDear(Exception):  # noqa: N818 - a limit, not an error
    """Following an assumption would size too many candidates."""


class _Undrafted:
    """Stands for a draft in a rehearsal, which never looks into one."""

    def __init__(self, config: Any) -> None:
        self.config = config


def _undrafted(config: Any) -> Draft:
    return cast("Draft", _Undrafted(config))
