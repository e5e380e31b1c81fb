"""Searching near the last best configuration.

`paper_search` is the published delta-neighbourhood (paper sec. 5.2).  `recover` is ours: it starts from a
last best that no longer meets the goal and measures first what is expected to meet it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from dynaquant_core.search.forecast import Forecast, level
from dynaquant_core.search.grid import Place, boldest
from dynaquant_core.search.trials import Trial, Trials

__all__ = ["better_variant", "flip_may_help", "paper_search", "recover"]

#: Another variant replaces the last best only where its degradation is better by this share of the threshold.
CLEAR_GAIN = 0.1
#: Levels above the threshold at which a candidate is still worth a trial though it is expected to fail.
REACH = 1.0


def better_variant(trials: Trials, last: Trial) -> Trial:
    """Measures the last best with every other metric; the one to go on from (paper sec. 5.2).

    It switches on a clear gain only: better by a tenth of the threshold and by more than the standard error.
    """
    chosen = last
    for flip in trials.grid.flips(last.place):
        trial = trials.measure(flip)
        if trial.degradation.clearly_below(chosen.degradation, CLEAR_GAIN * trials.goal.threshold):
            chosen = trial
    return chosen


def paper_search(trials: Trials, last: Place, radius: int) -> Trial | None:
    """The published rule: metric flip, then the neighbours by decreasing ratio, the first that meets wins.

    Never bolder than the last best on any axis.

    Args:
        trials: of this checkpoint.
        last: the last best.
        radius: steps per axis.

    Returns:
        The first candidate that meets the goal, or None.
    """
    base = better_variant(trials, trials.measure(last))
    for place in sorted(trials.grid.careful_box(base.place, radius), key=trials.size):
        trial = trials.measure(place)
        if trial.met:
            return trial
    return None


def recover(trials: Trials, forecast: Forecast, last: Trial, *, radius: int, tries: int) -> Trial | None:
    """A candidate at most ``radius`` steps from ``last`` on each axis that meets the goal, or None.

    Each trial is the smallest candidate expected to meet the goal; where none is, the one that misses it by
    least, if it is within reach.  Candidates at least as bold as a failed one on every axis are never
    measured; those bolder on one axis and more careful on another are (unlike the paper's).

    Args:
        trials: of this checkpoint; holds ``last``, which did not meet the goal.
        forecast: what is believed about the space; every trial corrects it.
        last: where to start from.
        radius: steps per axis.
        tries: most candidates to measure.
    """
    nearby = list(trials.grid.around(last.place, radius))
    for _ in range(tries):
        forecast = forecast.learnt(trials.inside, trials.goal, trials.grid.variants)
        place = _most_promising(trials, forecast, nearby)
        if place is None:
            return None
        if trials.measure(place).met:
            return trials.measure(place)
    return None


def _most_promising(trials: Trials, forecast: Forecast, nearby: Iterable[Place]) -> Place | None:
    """What to measure next, or None where nothing nearby is worth it."""
    levels = {
        place: forecast.level_at(
            place, trials.inside, threshold=trials.goal.threshold, variants=trials.grid.variants
        )
        for place in nearby
        if trials.known(place) is None and not trials.hopeless(place)
    }
    meeting = [place for place, expected in levels.items() if expected <= 0]
    if meeting:
        return min(boldest(meeting), key=trials.size)
    closest = min(levels, key=lambda place: levels[place], default=None)
    return closest if closest is not None and levels[closest] <= REACH else None


def flip_may_help(trials: Trials, forecast: Forecast, failed: Trial) -> bool:
    """Whether the other metric may save a failed trial: near enough, and not known to be the worse one."""
    gaps = dict(zip(trials.grid.variants, forecast.gaps, strict=True))
    own = gaps.pop(failed.place.variant)
    missed = level(failed.degradation, trials.goal.threshold, failed.excess)
    return missed <= REACH and min(gaps.values(), default=math.inf) <= own
