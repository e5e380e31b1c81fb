"""What a candidate's degradation will be, guessed from those measured nearby (ours).

Degradation is handled as a *level*: doublings above the threshold (0 = just met, 1 = twice the threshold).
Noise above what a space allows is one too; the worse of the two counts.  Levels rise by about the same amount
with every step along an axis, because each step multiplies the error of the weights.  The rises are learnt
from trials and travel with the checkpoint.  A forecast only orders and skips candidates; what is returned to
anyone is always measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dynaquant_core.search.grid import Grid, Place
from dynaquant_core.search.quality import Degradation, Goal
from dynaquant_core.search.trials import Trial

__all__ = ["Forecast", "level"]

#: Levels are kept within these bounds: below, a degradation is noise; above, its size says little.
LOWEST, HIGHEST = -5.0, 6.0
#: Trials further than this from the threshold tell little about the rises near it.
INFORMATIVE = 3.0
#: Weight of what is believed already against one step's worth of new evidence.
INERTIA = 0.5
#: A step never counts as less than this: the axes are monotone.
SMALLEST_RISE = 0.05


def level(found: Degradation, threshold: float, excess: float = 0.0) -> float:
    """Doublings above what is allowed, of a degradation or of its noise, whichever is worse, within [-5, 6].

    Args:
        found: the degradation.
        threshold: what is allowed of it, a share.
        excess: noise as a share of what is allowed (`Trial.excess`).

    Example:
        >>> level(Degradation(0.02), 0.01), level(Degradation(-0.3), 0.01), level(Degradation(0.0), 0.01, 4.0)
        (1.0, -5.0, 2.0)
    """
    share = max(found.mean / max(threshold, 1e-9), excess)
    if share <= 2.0**LOWEST:
        return LOWEST
    return min(math.log2(share), HIGHEST)


@dataclass(frozen=True, slots=True)
class Forecast:
    """How levels change over the space.

    Args:
        rises: doublings for one bold step, by ordered axis.
        gaps: doublings of each variant against the first.
        least: what a rise never goes below; empty: the same small number everywhere.

    Example:
        >>> from dynaquant_core.search.quality import Quality
        >>> seen = Trial(Place((1,), (0,)), Quality((1.0,)), Degradation(0.01), True)
        >>> Forecast((1.5,), (0.0,)).level_at(Place((2,), (0,)), [seen], threshold=0.01, variants=[(0,)])
        1.5
    """

    rises: tuple[float, ...]
    gaps: tuple[float, ...]
    least: tuple[float, ...] = ()

    @classmethod
    def prior(cls, grid: Grid) -> Forecast:
        """Before anything was seen: what the space expects, else one doubling a step; variants alike."""
        axes = (*grid.space.axes, *grid.space.refine)
        rises = tuple(grid.space.rises.get(name, 1.0) for name in axes)
        least = tuple(grid.space.rises.get(name, SMALLEST_RISE / 0.75) * 0.75 for name in axes)
        return cls(rises, (0.0,) * len(grid.variants), least)

    def fits(self, grid: Grid) -> bool:
        """Whether this forecast is about a space of this many axes and variants."""
        return len(self.rises) == len(grid.shape) and len(self.gaps) == len(grid.variants)

    def level_at(
        self, place: Place, seen: Iterable[Trial], *, threshold: float, variants: list[tuple[int, ...]]
    ) -> float:
        """Expected level at ``place``, reckoned from the nearest trial; ``inf`` where nothing was seen.

        Args:
            place: the candidate.
            seen: trials of this checkpoint.
            threshold: the goal's, a share.
            variants: the grid's, in order.
        """
        nearest = min(seen, key=lambda trial: _distance(place, trial.place), default=None)
        if nearest is None:
            return math.inf
        steps = (b - a for a, b in zip(nearest.place.steps, place.steps, strict=True))
        rise = sum(step * each for step, each in zip(steps, self.rises, strict=True))
        here, there = (self.gaps[variants.index(spot.variant)] for spot in (place, nearest.place))
        return level(nearest.degradation, threshold, nearest.excess) + rise + here - there

    def learnt(self, seen: Iterable[Trial], goal: Goal, variants: list[tuple[int, ...]]) -> Forecast:
        """This forecast moved toward what the trials of one checkpoint say about rises and gaps.

        Trials whose degradation is within its own standard error of 0 are left out, and so are those far
        from the threshold.  Least squares, held near what was believed before.
        """
        rows, levels = [], []
        for trial in seen:
            found = level(trial.degradation, goal.threshold, trial.excess)
            told = trial.excess > 0 or trial.degradation.mean > trial.degradation.se
            if told and abs(found) <= INFORMATIVE:
                chosen = [float(trial.place.variant == variant) for variant in variants]
                rows.append([*map(float, trial.place.steps), *chosen])
                levels.append(found)
        if len(rows) < 2:  # one trial has nothing to be compared with
            return self
        believed = np.array(self.rises + self.gaps)
        design = np.array(rows) - np.mean(rows, axis=0)
        surprise = np.array(levels) - np.mean(levels) - design @ believed
        inertia = INERTIA * np.eye(len(believed))
        moved = believed + np.linalg.solve(design.T @ design + inertia, design.T @ surprise)
        axes = len(self.rises)
        gaps = moved[axes:] - moved[axes]
        least = self.least or (SMALLEST_RISE,) * axes
        rises = tuple(float(max(rise, low)) for rise, low in zip(moved[:axes], least, strict=True))
        return Forecast(rises, tuple(float(gap) for gap in gaps), self.least)


def _distance(a: Place, b: Place) -> int:
    """Steps between two places; another variant counts as one."""
    return sum(abs(x - y) for x, y in zip(a.steps, b.steps, strict=True)) + (a.variant != b.variant)
