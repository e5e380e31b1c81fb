"""Counts of one tensor under one cut: all that a codebook's fit and its error depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.lazy import lazy
from dynaquant_core.quantize.kmeans.exact import Solutions

__all__ = ["SurvivorCounts"]

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class SurvivorCounts:
    """Survivors of one tensor (neither pruned nor protected), counted by bucket.

    Args:
        values: float64[r], ascending, the value that stands for each used bucket.
        edges: float64[r, 2], between which the values of each lie.
        counts: int64[r], weights in each bucket.
        energy: sum of squares of the whole tensor about its mean (published: about zero), pruned and
            protected weights included; a tensor far from zero must not lose its spread.
        pruned_energy: largest share of that energy that the cut may have pruned.
    """

    values: NDArray[np.float64]
    edges: NDArray[np.float64]
    counts: Counts
    energy: float
    pruned_energy: float

    @lazy
    def fits(self) -> dict[float, Solutions]:
        """Exact K-means solutions made so far, by sigma; one solution holds every smaller number of bins."""
        return {}

    def loss(self, centres: NDArray[np.float32]) -> float:
        """Sum over survivors of the squared distance to the nearest centre."""
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
        """Squared error ||w - w_hat||^2 over the energy, at most; where that is 0, 0 or infinite.

        With ``drawn`` codes are drawn from the two centres around a weight, which leaves up to twice as much.
        """
        loss = self.dithered_loss(centres) if drawn else self.loss(centres)
        if self.energy <= 0.0:
            return 0.0 if loss <= 0.0 else math.inf
        return loss / self.energy + self.pruned_energy
