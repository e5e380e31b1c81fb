"""Probing a step bolder (ours).

The published rule never tries anything bolder than the last best, so one hard checkpoint lowers the ratio for
the rest of the run.  Here, every few checkpoints, one smaller neighbour of the last best is measured too, and
at once where the forecast says that it would meet the goal.
"""

from __future__ import annotations

from dynaquant_core.search.forecast import Forecast
from dynaquant_core.search.grid import Place, boldest
from dynaquant_core.search.trials import Trial, Trials

__all__ = ["probe_bolder"]

#: A probe that is not due is made only where the level is expected this far under the threshold.
CONFIDENT = -0.1
#: A probe has to promise at least 2% fewer bytes: sizes from counts are no better than that.
WORTH = 0.98


def probe_bolder(
    trials: Trials, forecast: Forecast, base: Trial, *, radius: int, due: bool, most: int
) -> Trial:
    """The smallest candidate found around ``base`` that meets the goal; ``base`` where no probe does.

    A neighbour is at most ``radius`` steps away on each axis (bolder on one and more careful on another
    included), or at the same steps in another variant; only those clearly smaller than ``base`` count.

    Args:
        trials: of this checkpoint; holds ``base``.
        forecast: what is believed about the space.
        base: a candidate that meets the goal.
        radius: steps per axis.
        due: make one probe even where it is expected to fail.
        most: probes to make at most.
    """
    for turn in range(most):
        forecast = forecast.learnt(trials.inside, trials.goal, trials.grid.variants)
        place = _next_probe(trials, forecast, base, radius, due=due and turn == 0)
        if place is None or not trials.measure(place).met:
            break
        base = trials.measure(place)
    return base


def _next_probe(trials: Trials, forecast: Forecast, base: Trial, radius: int, *, due: bool) -> Place | None:
    """The smallest neighbour expected to meet the goal; if due and there is none, the likeliest one."""
    levels = _expected(trials, forecast, base, radius, every_kind=due)
    limit = 0.0 if due else CONFIDENT
    promising = [place for place, expected in levels.items() if expected <= limit]
    if promising:
        smallest = min(boldest(promising), key=trials.size)
        if _worth_it(trials, smallest, base):
            return smallest
    if not due:
        return None
    likeliest_first = sorted(levels, key=lambda place: levels[place])
    return next((place for place in likeliest_first if _worth_it(trials, place, base)), None)


def _expected(
    trials: Trials, forecast: Forecast, base: Trial, radius: int, *, every_kind: bool
) -> dict[Place, float]:
    """Expected levels of the neighbours that are neither measured nor at least as bold as a failed one.

    Unless every kind is asked for, those that are only more careful and those in another variant are left
    out: they are rarely smaller, and asking for a size is not free.
    """
    grid, place = trials.grid, base.place
    neighbours = list(grid.around(place, radius))
    if every_kind:
        neighbours += grid.flips(place)
    else:
        neighbours = [other for other in neighbours if not place.bolder_or_same(other)]
    return {
        other: forecast.level_at(
            other, trials.inside, threshold=trials.goal.threshold, variants=grid.variants
        )
        for other in neighbours
        if trials.known(other) is None and not trials.hopeless(other)
    }


def _worth_it(trials: Trials, place: Place, base: Trial) -> bool:
    return trials.size(place) <= WORTH * trials.size(base.spot)
