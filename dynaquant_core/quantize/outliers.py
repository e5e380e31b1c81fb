"""Outliers of a layer: weights that a normal distribution fitted to it makes improbable (GOBO, MICRO'20).

The rule is on the logarithm of the density, log p(w) < -4, and a density has a unit: the wider a layer, the
fewer deviations it takes.  At a standard deviation of 0.02 weights beyond 3.7 deviations are outliers, at 1
those beyond 2.5, and from 21.8 on all are.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["LOG_PROBABILITY", "normal_fit", "outlier_reach", "outliers"]

#: Weights of a smaller log-density are outliers (GOBO, section 4).
LOG_PROBABILITY = -4.0

#: Values that are summed in double precision at a time, so that no copy of a layer is made.
_BLOCK = 1 << 18


def normal_fit(values: NDArray[np.float32]) -> tuple[float, float]:
    """Mean and standard deviation of float32[n], n at least 1, in double precision.

    Example:
        >>> normal_fit(np.float32([1, 3]))
        (2.0, 1.0)
    """
    blocks = [values[start : start + _BLOCK] for start in range(0, values.size, _BLOCK)]
    mean = sum(float(block.sum(dtype=np.float64)) for block in blocks) / values.size
    square = sum(float(np.square(np.subtract(block, mean, dtype=np.float64)).sum()) for block in blocks)
    return mean, math.sqrt(square / values.size)


def outlier_reach(std: float, limit: float = LOG_PROBABILITY) -> float:
    """How far from the mean the log-density of a normal distribution falls to ``limit``.

    Args:
        std: standard deviation, in the weights' unit.
        limit: log-density, natural logarithm.

    Returns:
        The distance; infinite for a deviation of 0, -1 where even the mean is below the limit.

    Example:
        >>> round(outlier_reach(1.0), 3), outlier_reach(30.0)
        (2.482, -1.0)
    """
    if std == 0.0:
        return math.inf
    square = -2 * (limit + math.log(std * math.sqrt(2 * math.pi)))
    return std * math.sqrt(square) if square >= 0 else -1.0


def outliers(values: NDArray[np.float32], limit: float = LOG_PROBABILITY) -> NDArray[np.bool_]:
    """Which of float32[n] are outliers of their own normal fit, bool[n].

    Example:
        >>> values = np.append(np.linspace(-0.1, 0.1, 99), 9).astype(np.float32)
        >>> np.flatnonzero(outliers(values)).tolist()
        [99]
    """
    mean, std = normal_fit(values)
    reach = outlier_reach(std, limit)
    found: NDArray[np.bool_] = (values < np.float64(mean - reach)) | (values > np.float64(mean + reach))
    return found
