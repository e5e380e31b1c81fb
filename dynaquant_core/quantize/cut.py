"""The thresholds that part one tensor into pruned, protected and quantised weights (paper sec. 4.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.config import Metric
from dynaquant_core.quantize.buckets import Buckets

__all__ = ["NO_CUT", "PROTECTED", "PRUNED", "Cut"]

#: The two levels that are no centres.
PRUNED, PROTECTED = 0, 1


@dataclass(frozen=True, slots=True)
class Cut:
    """Thresholds of one tensor (paper sec. 4.2); each is the largest member of a bucket, or switches off.

    Args:
        protect_magnitude: weights with |w| strictly above it are protected; inf switches the rule off.
        protect_sensitivity: weights with |g w| strictly above it are protected; inf switches it off.
        prune: other weights whose metric is at or below it are pruned; -1 switches pruning off.
        prune_metric: which metric ``prune`` speaks of.

    Example:
        >>> Cut(prune=0.1, prune_metric="sensitivity").needs_gradient
        True
    """

    protect_magnitude: float = math.inf
    protect_sensitivity: float = math.inf
    prune: float = -1.0
    prune_metric: Metric = "magnitude"

    @property
    def needs_gradient(self) -> bool:
        """Whether any rule that is on speaks of sensitivity."""
        prunes = self.prune >= 0.0 and self.prune_metric == "sensitivity"
        return prunes or self.protect_sensitivity < math.inf

    def prunes_zeros_alone(self, buckets: Buckets) -> bool:
        """Whether what is pruned, if anything, is zero already."""
        return self.prune < 0.0 or (
            self.prune_metric == "magnitude" and self.prune <= float(buckets.limits[0])
        )

    def pruned(self, buckets: Buckets) -> NDArray[np.bool_]:
        """bool[size]: buckets pruned by their magnitude (protection not yet considered)."""
        limit = self.prune if self.prune_metric == "magnitude" else -1.0
        pruned = np.zeros(buckets.size, dtype=np.bool_)
        pruned[within(buckets, limit)] = True
        return pruned

    def protected(self, buckets: Buckets) -> NDArray[np.bool_]:
        """bool[size]: buckets protected by their magnitude."""
        protected = np.ones(buckets.size, dtype=np.bool_)
        protected[within(buckets, self.protect_magnitude)] = False
        return protected


def within(buckets: Buckets, limit: float) -> slice:
    """The buckets whose members' magnitudes are all at most ``limit``: a run around the zero bucket."""
    count = int(np.searchsorted(buckets.limits, np.float32(limit), side="right"))
    zero = buckets.magnitudes - 1 if buckets.signed else 0
    return slice(zero - count + 1 if buckets.signed else 0, zero + count) if count else slice(0, 0)


#: Nothing is pruned, nothing protected.
NO_CUT = Cut()
