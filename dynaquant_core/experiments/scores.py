"""Scores that are of a whole set: no mean over its batches gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["correlation"]


def correlation(predicted: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Mean of Pearson's and Spearman's coefficient, the metric of STS-B; nan where either set is constant.

    Args:
        predicted: float[n].
        wanted: float[n].

    Example:
        >>> correlation(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])).__round__(9)
        1.0
    """
    one, other = (np.asarray(values, dtype=np.float64) for values in (predicted, wanted))
    return (_pearson(one, other) + _pearson(_ranks(one), _ranks(other))) / 2


def _pearson(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    one, other = one - one.mean(), other - other.mean()
    scale = float(np.sqrt((one @ one) * (other @ other)))
    return float(one @ other) / scale if scale > 0 else float("nan")


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Places in ascending order; equal values share the mean of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: NDArray[np.float64] = (last - (counts - 1) / 2)[group]
    return mean
