"""Exact weighted K-means in one dimension, for every number of clusters at once (ours).

Points in order, clusters are runs of neighbours, so the best clustering is a dynamic programme over where the
last cluster starts.  Solving k clusters needs k - 1 first, so all smaller numbers come for free:
O(k n log n), a few milliseconds for 32 clusters of 3000 buckets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.errors import ConfigError
from dynaquant_core.quantize.kmeans import kernels

__all__ = ["Solutions", "checked_points", "solve"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Solutions:
    """The best clusterings of one set of weighted points, for every k up to ``k_max``.

    Args:
        values: float64[n], ascending, the points that weigh anything.
        weights: float64[n], positive.
        starts: int64[k_max, k_max]: row k - 1 says where each of k clusters starts.
    """

    values: Floats
    weights: Floats
    starts: NDArray[np.int64]

    @property
    def k_max(self) -> int:
        """Largest number of clusters solved for: as asked, or the number of points where that is smaller."""
        return int(self.starts.shape[0])

    def centres(self, k: int) -> Floats:
        """Centres of the best ``k`` clusters.

        Returns:
            float64, ascending; fewer than ``k`` where there are fewer points.

        Raises:
            ConfigError: ``k`` is below 1, or above what was solved for while there are points enough.
        """
        return self._clusters(k)[1]

    def loss(self, k: int) -> float:
        """Least possible sum of w (x - nearest centre)^2 with ``k`` centres; raises as `centres`."""
        starts, centres = self._clusters(k)
        if centres.size == 0:
            return 0.0
        sizes = np.diff(np.append(starts, self.values.size))
        return float(np.dot(self.weights, (self.values - np.repeat(centres, sizes)) ** 2))

    def _clusters(self, k: int) -> tuple[NDArray[np.int64], Floats]:
        """(first point of each cluster, centre of each)."""
        if k < 1 or (k > self.k_max and self.k_max < self.values.size):
            raise ConfigError(f"kmeans: asked for {k} clusters, expected a number from 1 to {self.k_max}.")
        known = min(k, self.k_max)
        starts = self.starts[known - 1, :known] if known else np.zeros(0, dtype=np.int64)
        if starts.size == 0:
            return starts, np.zeros(0)
        # Summed afresh: differences of prefix sums would lose the digits of small clusters.
        moments = np.add.reduceat(self.weights * self.values, starts)
        return starts, moments / np.add.reduceat(self.weights, starts)


def solve(values: Floats, weights: Floats, k_max: int) -> Solutions:
    """Solves weighted K-means exactly for every number of clusters up to ``k_max``.

    Args:
        values: float64[n], ascending.
        weights: float64[n], not negative; points of weight 0 are left out.
        k_max: largest number of clusters, at least 1.

    Returns:
        `Solutions`; exact up to float64 rounding of the total sum of squares.

    Raises:
        ConfigError: the points are not finite and ascending, a weight is negative, or k_max is below 1.

    Example:
        >>> points = np.array([0.0, 1.0, 10.0, 11.0])
        >>> best = solve(points, np.ones(4), 3)
        >>> best.centres(2).tolist(), best.loss(2)
        ([0.5, 10.5], 1.0)
    """
    values, weights = checked_points(values, weights)
    if k_max < 1:
        raise ConfigError(f"kmeans: k_max must be at least 1, got {k_max}.")
    size = values.size
    splits = np.zeros((min(k_max, size), size), dtype=np.int64)
    if size == 0:
        return Solutions(values, weights, np.zeros((0, 0), dtype=np.int64))
    # Centred and scaled points keep the prefix sums' rounding small; clusters do not depend on either.
    centred = values - np.average(values, weights=weights)
    centred /= np.abs(centred).max() or 1.0
    mass, first, second = (prefix(weights * centred**power) for power in (0, 1, 2))
    before = second[1:] - first[1:] ** 2 / mass[1:]
    after = np.empty(size)
    for layer in range(1, splits.shape[0]):
        kernels.best_splits(layer, mass, first, second, before, after, splits[layer - 1], splits[layer])
        before, after = after, before
    return Solutions(values, weights, _traced(splits))


def _traced(splits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where clusters start, for every number of them: a few kilobytes of the programme's table to keep.

    Args:
        splits: int64[k_max, n]: row k - 1 says where the last of k clusters of points 0..i starts.

    Returns:
        int64[k_max, k_max] as in `Solutions`.
    """
    most, size = splits.shape
    starts = np.zeros((most, most), dtype=np.int64)
    last = np.full(most, size - 1)
    for layer in range(most - 1, -1, -1):  # all numbers of clusters that have a cluster of this place
        starts[layer:, layer] = splits[layer, last[layer:]]
        last[layer:] = starts[layer:, layer] - 1
    return starts


def prefix(terms: Floats) -> Floats:
    """Prefix sums, float64[n] to float64[n + 1], from 0."""
    return np.concatenate(([0.0], np.cumsum(terms)))


def checked_points(values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """The points that weigh anything; raises ConfigError unless they are a valid problem."""
    values, weights = np.asarray(values, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    good = values.ndim == 1 and values.shape == weights.shape and bool((np.diff(values) >= 0).all())
    good = good and bool(np.isfinite(values).all() and np.isfinite(weights).all() and (weights >= 0).all())
    if not good:
        raise ConfigError(
            f"kmeans: expected n finite points in ascending order and n weights of at least 0, "
            f"got shapes {values.shape} and {weights.shape}."
        )
    used = weights > 0
    return values[used], weights[used]
