"""One checkpoint's search in steady state (ours): few trials, and the promise kept.

The last best is measured first.  While it meets the goal the only question is whether something smaller does
too; once it fails, its neighbours come before the cube, and the cube before what lies beyond.
"""

from __future__ import annotations

from dataclasses import dataclass

from dynaquant_core.search.beyond import walk_beyond
from dynaquant_core.search.bold import probe_bolder
from dynaquant_core.search.forecast import Forecast
from dynaquant_core.search.grid import Place
from dynaquant_core.search.guided import search_cube
from dynaquant_core.search.neighbourhood import better_variant, flip_may_help, recover
from dynaquant_core.search.retrace import retrace
from dynaquant_core.search.trials import Trial, Trials

__all__ = ["Found", "from_beyond", "from_last_best", "whole_cube"]

#: Trials of a checkpoint after which nothing smaller is looked for any more.
FEW = 3
#: Most neighbours measured before the search widens.
HANDFUL = 4
#: Most places measured on the way down to the most careful one, where the whole cube is not due.
DESCENT = 5


@dataclass(frozen=True, slots=True)
class Found:
    """How a checkpoint's search ended.

    Args:
        trial: the choice; it meets the goal.
        exhaustive: the whole cube was searched.
        probed: something bolder than the last choice was tried.
        eager: something bolder should be tried at the next checkpoint already.
    """

    trial: Trial
    exhaustive: bool = False
    probed: bool = False
    eager: bool = False


def whole_cube(trials: Trials) -> Found:
    """The guided exhaustive search, and what lies beyond the cube where nothing in it meets the goal."""
    return Found(search_cube(trials) or walk_beyond(trials), exhaustive=True, probed=True)


def from_last_best(
    trials: Trials, forecast: Forecast, last: Place, *, radius: int, due: bool, cube_allowed: bool
) -> Found:
    """Goes on from the last best configuration.

    Args:
        trials: of this checkpoint.
        forecast: what is believed about the space.
        last: the last best.
        radius: steps per axis that count as near.
        due: something bolder is to be tried.
        cube_allowed: the whole cube may be searched if nothing near meets the goal.
    """
    base = trials.measure(last)
    if base.met:
        return _improve(trials, forecast, base, radius, due=due)
    if flip_may_help(trials, forecast, base):
        base = better_variant(trials, base)
    found = base if base.met else recover(trials, forecast, base, radius=radius, tries=HANDFUL)
    if found is not None:
        return _improve(trials, forecast, retrace(trials, forecast, found), radius, due=False)
    if cube_allowed:
        return whole_cube(trials)
    return Found(_descend(trials, forecast, base) or walk_beyond(trials), eager=True)


def from_beyond(
    trials: Trials, forecast: Forecast, last: Place, index: int, *, due: bool, cube_allowed: bool
) -> Found:
    """Goes on from entry ``index`` of `Space.beyond`; if ``due``, tries the way back first.

    The way back is the cube's most careful place, then the next bolder entry.  From the exact entry, which
    needs no measurement, the next bolder one is tried every time.
    """
    if due:
        corner = trials.measure(_most_careful(last))
        if corner.met and cube_allowed:
            return whole_cube(trials)
        if corner.met:
            return _improve(trials, forecast, corner, 1, due=True)
    exact = len(trials.grid.space.beyond) - 1
    start = index - 1 if due or index >= exact else index
    return Found(walk_beyond(trials, max(start, 0)), probed=due)


def _improve(trials: Trials, forecast: Forecast, base: Trial, radius: int, *, due: bool) -> Found:
    """Something smaller than a candidate that meets the goal, where a probe finds it."""
    before = trials.evaluations
    most = max(FEW - before, 0)
    trial = probe_bolder(trials, forecast, base, radius=radius, due=due, most=most)
    return Found(trial, probed=due or trials.evaluations > before, eager=trial is not base)


def _descend(trials: Trials, forecast: Forecast, base: Trial) -> Trial | None:
    """The way down from a failed place to the most careful one; None where even that fails."""
    found = recover(trials, forecast, base, radius=max(trials.grid.shape, default=0), tries=DESCENT)
    if found is not None:
        return retrace(trials, forecast, found)
    corner = trials.measure(_most_careful(base.place))
    return corner if corner.met else None


def _most_careful(place: Place) -> Place:
    return Place((0,) * len(place.steps), place.variant)
