"""Counts of one tensor under one cut: all that a codebook's fit and its error depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.lazy import lazy
from dynaquant_core.quantize.kmeans.exact import Solutions
from dynaquant_core.quantize.sketch import Moments

__all__ = ["SurvivorCounts", "spread_of"]

#: Share of a tensor's values at each end that say nothing of how far most of them spread: one row may lie
#: elsewhere.
FEW = 0.05

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class SurvivorCounts:
    """Survivors of one tensor (neither pruned nor protected), counted by bucket.

    Args:
        values: float64[r], ascending, the value that stands for each used bucket.
        edges: float64[r, 2], between which the values of each lie.
        counts: int64[r], weights in each bucket.
        energy: sum of squares about their mean of the whole tensor's values but zeros (`spread_of`;
            published: of all, about zero), pruned and protected weights included; a tensor far from zero must
            not lose its spread.
        pruned_energy: largest share of that energy that the cut may have pruned.
        inside: sum over survivors of the squared distance to the value that stands for them, which no
            codebook gives back.
        hidden: of most of the tensor's values, about that sum over the sum of squares about their mean.
    """

    values: NDArray[np.float64]
    edges: NDArray[np.float64]
    counts: Counts
    energy: float
    pruned_energy: float
    inside: float = 0.0
    hidden: float = 0.0

    @lazy
    def fits(self) -> dict[float, Solutions]:
        """Exact K-means solutions made so far, by sigma; one solution holds every smaller number of bins."""
        return {}

    def loss(self, centres: NDArray[np.float32]) -> float:
        """Sum over survivors of the squared distance to the nearest centre, but for what is `inside`."""
        if self.values.size == 0 or centres.size == 0:
            return 0.0
        wide = centres.astype(np.float64)
        nearest = np.searchsorted((wide[1:] + wide[:-1]) / 2, self.values)
        return float(np.dot(self.counts, (self.values - wide[nearest]) ** 2))

    def dithered_loss(self, centres: NDArray[np.float32]) -> float:
        """The same where a code is drawn from the two centres around a survivor (`quantize.dither`)."""
        if self.values.size == 0 or centres.size == 0:
            return 0.0
        wide = centres.astype(np.float64)
        low = (np.searchsorted(wide, self.values, side="right") - 1).clip(0, max(0, wide.size - 2))
        below = self.values - wide[low]
        above = wide[np.minimum(low + 1, wide.size - 1)] - self.values
        outside = np.minimum(below**2, above**2)
        return float(np.dot(self.counts, np.where((below < 0) | (above < 0), outside, below * above)))

    def relative_error(self, centres: NDArray[np.float32], *, drawn: bool = False) -> float:
        """Squared error ||w - w_hat||^2 over the energy, at most; where that is 0, 0 or infinite."""
        return self.coding_error(centres, drawn=drawn) + (self.pruned_energy if self.energy > 0.0 else 0.0)

    def coding_error(self, centres: NDArray[np.float32], *, drawn: bool = False) -> float:
        """The same without what is pruned; or what is lost of most values, where that is the larger share.

        With ``drawn`` codes are drawn from the two centres around a weight, which leaves up to twice as much.
        """
        loss = self.dithered_loss(centres) if drawn else self.loss(centres)
        twice = 2 if drawn else 1
        loss += twice * self.inside
        if self.energy <= 0.0:
            return 0.0 if loss <= 0.0 else math.inf
        return max(loss / self.energy, twice * self.hidden)


def spread_of(counts: Counts, moments: Moments) -> tuple[float, float]:
    """How far a tensor's values spread, of those that its codes have to tell apart: all but zeros.

    Args:
        counts: int64[r], weights in each bucket, by ascending value.
        moments: of the values in each; the mean of zeros is 0.

    Returns:
        (sum of squares about the mean, `hidden` of `SurvivorCounts`).

    Example:
        >>> values = np.array([0.0, 0.99, 1.01]), np.full(3, 1e-4), np.full(3, 0.75**0.5 * 1e-2)
        >>> energy, hidden = spread_of(np.array([7, 1, 1]), Moments(*values))
        >>> round(energy, 6), round(hidden, 6)
        (0.0004, 0.5)
    """
    others = np.where(moments.means == 0.0, 0, counts)
    few = FEW * others.sum()
    most = np.diff(np.cumsum(others).clip(few, others.sum() - few), prepend=few)
    spread = energy_of(most, moments)
    # From mean distances, as in buckets that are filled evenly: of many equal values and a few beside them
    # the variance would say that all is lost.
    lost = 4 / 3 * float(np.dot(most, moments.deviations**2))
    return energy_of(others, moments), lost / spread if spread > 0.0 else 0.0


def energy_of(counts: NDArray[Any], moments: Moments) -> float:
    """Sum of squares about the mean of values that are counted by bucket."""
    middle = float(np.dot(counts, moments.means)) / max(1.0, float(counts.sum()))
    return float(np.dot(counts, (moments.means - middle) ** 2 + moments.variances))
