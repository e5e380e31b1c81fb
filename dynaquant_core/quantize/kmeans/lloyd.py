"""The paper's K-means: weighted k-means++ and Lloyd's iterations (paper sec. 4.3, A.2.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.errors import ConfigError
from dynaquant_core.quantize.kmeans.exact import Floats, checked_points

__all__ = ["fit", "nearest", "seed_centres"]

#: The paper names neither; these are its usual settings.
ITERATIONS = 50
TOLERANCE = 1e-4


def fit(
    values: Floats,
    weights: Floats,
    k: int,
    *,
    seed: int = 0,
    power: int = 2,
    iterations: int = ITERATIONS,
    tolerance: float = TOLERANCE,
) -> Floats:
    """Clusters weighted points by Lloyd's iterations from a weighted k-means++ start.

    Args:
        values: float64[n], ascending.
        weights: float64[n], not negative; points of weight 0 are left out.
        k: number of clusters, at least 1.
        seed: of the start; the same seed gives the same centres.
        power: a centre is drawn with probability ~ W D^power: 2 as the proof needs, 1 as published.
        iterations: at most so many.
        tolerance: stops once an iteration lowers the loss by no more than this share of it.

    Returns:
        float64, ascending; fewer than ``k`` where there are fewer distinct points.

    Raises:
        ConfigError: the points are not valid (`exact.solve`), k is below 1, or power is neither 1 nor 2.

    Example:
        >>> fit(np.array([0.0, 1.0, 10.0, 11.0]), np.ones(4), 2).tolist()
        [0.5, 10.5]
    """
    values, weights = checked_points(values, weights)
    if k < 1 or power not in (1, 2):
        raise ConfigError(f"kmeans: expected k of at least 1 and power 1 or 2, got k={k} and power={power}.")
    if values.size == 0:
        return values
    centres = seed_centres(values, weights, k, np.random.default_rng(seed), power=power)
    loss = np.inf
    for _ in range(iterations):
        labels = nearest(values, centres)
        now = float(np.dot(weights, (values - centres[labels]) ** 2))
        if loss - now <= tolerance * now:
            break
        loss = now
        centres = means(values, weights, labels, centres)
    return centres


def seed_centres(
    values: Floats, weights: Floats, k: int, generator: np.random.Generator, *, power: int = 2
) -> Floats:
    """Draws the start: the first centre ~ W, each next ~ W D^power, D the distance to the nearest centre.

    Args:
        values: float64[n].
        weights: float64[n], positive.
        k: number of centres.
        generator: source of randomness.
        power: 2 keeps k-means++'s bound in expectation, 1 is what the paper prints.

    Returns:
        float64, ascending; fewer than ``k`` once every point is a centre.

    Example:
        >>> seed_centres(np.array([1.0, 2.0]), np.ones(2), 5, np.random.default_rng(0)).tolist()
        [1.0, 2.0]
    """
    centres = [values[draw(weights, generator)]]
    distance = np.abs(values - centres[0])
    while len(centres) < k and distance.any():
        centres.append(values[draw(weights * distance**power, generator)])
        distance = np.minimum(distance, np.abs(values - centres[-1]))
    return np.unique(np.array(centres))


def draw(weights: Floats, generator: np.random.Generator) -> int:
    """Index drawn with probability proportional to the weights, never one of weight 0."""
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, generator.random() * sums[-1], side="right"))


def nearest(values: Floats, centres: Floats) -> NDArray[np.int64]:
    """Index of each value's nearest centre, the lower one on a tie: int64[n]."""
    return np.searchsorted((centres[1:] + centres[:-1]) / 2, values).astype(np.int64)


def means(values: Floats, weights: Floats, labels: NDArray[np.int64], centres: Floats) -> Floats:
    """Weighted mean of each cluster; an empty one keeps its centre."""
    mass = np.bincount(labels, weights=weights, minlength=centres.size)
    moment = np.bincount(labels, weights=weights * values, minlength=centres.size)
    return np.where(mass > 0.0, moment / np.where(mass > 0.0, mass, 1.0), centres)
