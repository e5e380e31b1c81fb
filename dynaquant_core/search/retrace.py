"""Going back part of a long stride (ours).

What a recovery goes by is one or two measured degradations, and those are as noisy as the batches they were
measured on.  Where they overstate, it strides to a place far more careful than it had to be, whose bytes are
spent before the next probe.  So the ground between that place and the one that failed is halved.
"""

from __future__ import annotations

from dynaquant_core.search.forecast import Forecast
from dynaquant_core.search.grid import Place
from dynaquant_core.search.trials import Trial, Trials

__all__ = ["retrace"]

#: Most places measured on the way back.
HALVINGS = 2
#: A place on the way has to take so much fewer bytes: 4%.
WORTH = 0.96


def retrace(trials: Trials, forecast: Forecast, found: Trial) -> Trial:
    """The smallest place that meets the goal on the way from ``found`` to the nearest bolder one that failed.

    Each trial is halfway between the two, and becomes one of them; there is none where they are neighbours,
    where the one halfway is hardly smaller, or where ``found`` is so near the threshold that it cannot meet.

    Args:
        trials: of this checkpoint; holds ``found``.
        forecast: what is believed about the space.
        found: meets the goal.
    """
    for _ in range(HALVINGS):
        place = _halfway(trials, found)
        if place is None or not _may_meet(trials, forecast, found, place):
            break
        trial = trials.measure(place)
        found = trial if trial.met else found
    return found


def _halfway(trials: Trials, found: Trial) -> Place | None:
    """The place between ``found`` and the nearest failed one that is bolder; None where there is none."""
    bolder = [
        trial.place.steps
        for trial in trials.inside
        if not trial.met and trial.place.bolder_or_same(found.place)
    ]
    if not bolder:
        return None
    nearest = min(bolder, key=sum)
    steps = tuple((a + b) // 2 for a, b in zip(found.place.steps, nearest, strict=True))
    place = Place(steps, found.place.variant)
    return None if trials.known(place) is not None or trials.hopeless(place) else place


def _may_meet(trials: Trials, forecast: Forecast, found: Trial, place: Place) -> bool:
    """Whether a place is worth a measurement by its size and by what ``found`` alone lets expect of it."""
    level = forecast.level_at(place, [found], threshold=trials.goal.threshold, variants=trials.grid.variants)
    return level <= 0 and trials.size(place) <= WORTH * trials.size(found.spot)
