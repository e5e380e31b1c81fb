"""Beyond the cube: what to store when no configuration in it meets the threshold.

A threshold is a promise (ARCHITECTURE.md, rule 7).  `Space.beyond` goes from bold to careful (more bins,
bfloat16, exact); its last entry gives back the very tensors, so it always meets the goal.
"""

from __future__ import annotations

import logging

from dynaquant_core.search.trials import Trial, Trials

__all__ = ["walk_beyond"]

logger = logging.getLogger(__name__)


def walk_beyond(trials: Trials, start: int = 0) -> Trial:
    """The first entry of `Space.beyond` from ``start`` on that meets the goal; says so in the log.

    The last entry is exact and is taken without a measurement.
    """
    last = len(trials.grid.space.beyond) - 1
    found = next((trial for trial in map(trials.measure, range(min(start, last), last)) if trial.met), None)
    found = found or trials.take_exact(last)
    logger.warning(
        "no configuration of the search space keeps degradation within %g; storing with %s.",
        trials.goal.threshold,
        trials.grid.config(found.spot),
    )
    return found
