"""How much of its metric a model has learnt, beside one that knows nothing (ours).

A threshold is a share of the metric.  Near chance that is a large share of what has been learnt: a loss that
came down from 2.3 to 2.1 is hardly worse for noise that undoes a tenth of it, and noise of that size stays
for most of the run (docs/healing.md).  So where less has been learnt than the metric comes to, the threshold
is a share of that.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dynaquant_core.search.grid import Place, Spoilt
from dynaquant_core.search.memory import SearchState
from dynaquant_core.search.quality import Mode, Quality, degradation
from dynaquant_core.search.trials import Trials

__all__ = ["LEAST", "learnt", "with_naught"]

#: A model that is no better than one that knows nothing counts as if it had learnt so much: metrics differ,
#: and files must not grow without bound where one says nothing.
LEAST = 0.1


def learnt(reference: float, naught: float | None, mode: Mode) -> float:
    """The share of its metric that a model has learnt, from `LEAST` to 1.

    Args:
        reference: its metric.
        naught: that of a model that knows nothing; None: not known, and then all counts as learnt.
        mode: "min" or "max".

    Example:
        >>> learnt(1.7, 4.2, "min"), round(learnt(2.0, 2.3, "min"), 2), learnt(2.3, 2.3, "min")
        (1.0, 0.15, 0.1)
        >>> round(learnt(0.4, 0.1, "max"), 2)
        0.75
    """
    if naught is None or not math.isfinite(reference):
        return 1.0
    worse = degradation(Quality((reference,)), Quality((naught,)), mode).mean
    return min(max(worse, LEAST), 1.0) if math.isfinite(worse) else 1.0


def with_naught(trials: Trials, state: SearchState, place: Place) -> SearchState:
    """The state with the metric of knowing nothing, which is measured once a life of the run.

    Args:
        trials: of this checkpoint.
        state: of the last search.
        place: whose draft is spoilt; any.
    """
    if state.asked:
        return state
    quality = trials.of_naught(Spoilt(place))
    known = quality is not None and quality.finite
    return replace(state, asked=True, naught=quality.mean if known and quality is not None else None)
