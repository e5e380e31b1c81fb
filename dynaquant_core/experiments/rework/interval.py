"""How sure a mean is, by the bootstrap (Efron 1979), which assumes no distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Interval", "mean_interval", "ratio_interval"]

#: Samples that are drawn, and the share of them that an interval holds.
DRAWS: Final = 10_000
SHARE: Final = 0.95

Values = Sequence[float]


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95% interval.

    Args:
        value: from all that was measured.
        low, high: the ends; None with fewer than two values.
    """

    value: float
    low: float | None = None
    high: float | None = None


def mean_interval(values: Values) -> Interval | None:
    """The mean, with the percentile interval of means of samples; None of nothing.

    Args:
        values: independent of each other.

    Example:
        >>> mean_interval([2.0, 2.0, 2.0]), mean_interval([3.0])
        (Interval(value=2.0, low=2.0, high=2.0), Interval(value=3.0, low=None, high=None))
    """
    if not values:
        return None
    known = np.asarray(values, np.float64)
    if known.size < 2:
        return Interval(float(known.mean()))
    return Interval(float(known.mean()), *_ends(known[_samples(known.size)].mean(1)))


def ratio_interval(above: Values, below: Values) -> Interval | None:
    """The ratio of two means of values that belong together in pairs; None where a mean may be zero.

    Args:
        above: one for each repeat.
        below: of the same repeats.

    Example:
        >>> ratio_interval([4.0, 8.0], [2.0, 4.0])
        Interval(value=2.0, low=2.0, high=2.0)
        >>> ratio_interval([4.0], [0.0]) is None
        True
    """
    tops, bottoms = np.asarray(above, np.float64), np.asarray(below, np.float64)
    if not tops.size or not bottoms.mean():
        return None
    ratio = float(tops.mean() / bottoms.mean())
    if tops.size < 2:
        return Interval(ratio)
    chosen = _samples(tops.size)
    means = bottoms[chosen].mean(1)
    if not means.all():
        return Interval(ratio)
    return Interval(ratio, *_ends(tops[chosen].mean(1) / means))


def _samples(size: int) -> NDArray[np.int64]:
    """Places of `DRAWS` samples: always the same, so that a figure is."""
    return np.random.default_rng(0).integers(0, size, (DRAWS, size))


def _ends(figures: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(figures, [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return float(low), float(high)
