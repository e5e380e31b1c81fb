"""The trials of one checkpoint: every candidate is sized at most once and measured at most once.

Only two drafts are kept alive, the latest and the smallest that met the goal, because a draft may hold codes
for the whole model; another one that is wanted again is drafted again, which gives the same.  Places whose
configs are equal (pruning nothing by either metric) are one candidate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

from dynaquant_core.errors import EvaluationError
from dynaquant_core.methods.base import Draft
from dynaquant_core.search.grid import Choosable, Grid, Place, Spoilt, Spot
from dynaquant_core.search.quality import Degradation, Goal, Quality
from dynaquant_core.search.spoilt import SpoiltDraft

__all__ = ["Trial", "Trials"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that was measured.

    Args:
        spot: where.
        quality: what evaluate gave.
        degradation: of that.
        met: degradation and noise are within what is allowed.
        excess: noise as a share of what the space allows; 0 where it is not known.
    """

    spot: Choosable
    quality: Quality
    degradation: Degradation
    met: bool
    excess: float = 0.0

    @property
    def place(self) -> Place:
        """The place of a candidate inside the space (those beyond it have none)."""
        assert isinstance(self.spot, Place)
        return self.spot


class Trials:
    """Sizes and measures candidates of one checkpoint, remembering both.

    Args:
        grid: the space with coordinates.
        draft: makes the draft of a config; cheap until its size or its tensors are asked for.
        measure: evaluates a draft's decoded tensors; what it raises goes through.
        goal: reference, threshold and mode.
    """

    def __init__(
        self, grid: Grid, draft: Callable[[Any], Draft], measure: Callable[[Draft], Quality], goal: Goal
    ) -> None:
        self.grid = grid
        self.goal = goal
        self._make = draft
        self._measure = measure
        self._drafts: dict[Spot, Draft] = {}
        self._sizes: dict[Hashable, int] = {}
        self._measured: dict[Choosable, Trial] = {}
        self._by_config: dict[Hashable, Trial] = {}
        self._smallest: Trial | None = None
        self._looked = 0
        self._naught: tuple[Quality | None, ...] = ()

    @property
    def evaluations(self) -> int:
        """How many candidates were measured, a spoilt one included (the reference not counted)."""
        return len(self._by_config) + self._looked

    @property
    def sized(self) -> int:
        """How many candidates were asked for their size."""
        return len(self._sizes)

    @property
    def inside(self) -> list[Trial]:
        """Trials inside the space, in the order they were measured."""
        return [trial for spot, trial in self._measured.items() if isinstance(spot, Place)]

    @property
    def smallest(self) -> Trial | None:
        """Of the trials inside the space that met the goal, the one of the fewest bytes."""
        return self._smallest

    @property
    def bound(self) -> float:
        """Bytes that a candidate has to stay under to be worth measuring (inf: nothing met yet)."""
        return float("inf") if self._smallest is None else self.size(self._smallest.spot)

    def draft(self, spot: Spot) -> Draft:
        """The draft of a candidate; the same object while it is the latest or the smallest that met."""
        if spot not in self._drafts:
            keep = None if self._smallest is None else self._smallest.spot
            self._drafts = {other: kept for other, kept in self._drafts.items() if other == keep}
            self._drafts[spot] = self._make(self.grid.config(spot))
        return self._drafts[spot]

    def size(self, spot: Spot) -> int:
        """Bytes of a candidate."""
        key = self.grid.key(spot)
        if key not in self._sizes:
            self._sizes[key] = self.draft(spot).size
        return self._sizes[key]

    def known(self, spot: Choosable) -> Trial | None:
        """The trial of a candidate, if it was measured."""
        return self._measured.get(spot)

    def measure(self, spot: Choosable) -> Trial:
        """Evaluates a candidate, once; a quality that is not finite counts as not met."""
        if spot not in self._measured:
            key = self.grid.key(spot)
            if key not in self._by_config:
                self._by_config[key] = self.evaluated(spot)
            trial = self._measured[spot] = replace(self._by_config[key], spot=spot)
            if trial.met and isinstance(spot, Place) and self.size(spot) < self.bound:
                self._smallest = trial
        return self._measured[spot]

    def evaluated(self, spot: Choosable) -> Trial:
        """The trial of a candidate that is asked for the first time."""
        trial = self.judged(spot, self._measure(self.draft(spot)))
        logger.debug(
            "tried %s: degradation %.4g, noise %.3g of what is allowed, met %s",
            self.grid.config(spot), trial.degradation.mean, trial.excess, trial.met,
        )  # fmt: skip
        return trial

    def judged(self, spot: Choosable, quality: Quality) -> Trial:
        """The trial of a candidate whose quality is known."""
        found = self.goal.judge(quality)
        excess = self._excess(spot, quality, found)
        return Trial(spot, quality, found, self.goal.met(found) and excess <= 1.0, excess)

    def _excess(self, spot: Choosable, quality: Quality, found: Degradation) -> float:
        if quality.lost is None or isinstance(spot, int) or not any(spot.steps):
            return 0.0
        return self.grid.space.excess(quality.lost.noise, found.mean + found.se)

    def take_exact(self, spot: int) -> Trial:
        """The trial of an exact candidate, known without measuring: a reader gets the very tensors."""
        return Trial(spot, self.goal.reference, Degradation(0.0), met=True)

    @property
    def all_alike(self) -> bool:
        """Whether every candidate that was measured gave the reference's value, bit for bit."""
        reference = self.goal.reference.values
        return all(
            trial.quality.values == reference and trial.degradation.mean == 0.0
            for trial in self._measured.values()
        )

    def is_bold(self, place: Place) -> bool:
        """Whether a candidate may be far from the model: not the finest place, and some of it is not exact.

        Bytes do not tell how far: where little has moved, a bold delta is no smaller than a careful one.
        """
        exact = len(self.grid.space.beyond) - 1
        return any(place.steps) and self.size(place) < self.size(exact)

    def is_seen(self, place: Place) -> bool:
        """Whether evaluate gives another value, or an error, once a candidate's tensors are spoilt.

        It takes one evaluation, which no promise is drawn from, unless `of_naught` has just made it.
        """
        quality = self._naught[0] if self._naught else self.of_naught(Spoilt(place))
        return quality is None or quality.values != self.goal.reference.values

    def of_naught(self, spot: Spoilt) -> Quality | None:
        """What evaluate gives of a spoilt candidate, as `of_spoilt`; it counts as an evaluation."""
        self._looked += 1
        self._naught = (self.of_spoilt(spot),)
        return self._naught[0]

    def of_spoilt(self, spot: Spoilt) -> Quality | None:
        """What evaluate gives of a spoilt candidate; None where it cannot be evaluated."""
        try:
            return self._measure(SpoiltDraft(self.draft(spot.of)))
        except EvaluationError:
            return None

    def hopeless(self, place: Place) -> bool:
        """Whether a candidate that did not meet the goal is at least as careful (quality is monotone)."""
        return any(not trial.met and place.bolder_or_same(trial.place) for trial in self.inside)
