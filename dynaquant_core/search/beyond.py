"""Beyond the cube: what to store when no configuration in it meets the threshold.

A threshold is a promise (ARCHITECTURE.md, rule 7).  `Space.beyond` goes from bold to careful (more bins,
bfloat16, exact); its last entry gives back the very tensors, so it always meets the goal.
"""

from __future__ import annotations

from dynaquant_core.search.trials import Trial, Trials

__all__ = ["walk_beyond"]


def walk_beyond(trials: Trials, start: int = 0) -> Trial:
    """The first entry of `Space.beyond` from ``start`` on that meets the goal.

    The last entry is exact and is taken without a measurement.
    """
    last = len(trials.grid.space.beyond) - 1
    found = next((trial for trial in map(trials.measure, range(min(start, last), last)) if trial.met), None)
    return found or trials.take_exact(last)
