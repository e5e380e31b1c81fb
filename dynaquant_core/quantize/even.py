"""Evenly spaced levels over a range, both of its ends being levels: the asymmetric uniform quantiser.

Guarantee: a value inside the range comes back within half a step, (high - low) / (2 (bins - 1)), up to one
rounding to float32; one outside comes back as the nearer end.

Example:
    >>> levels = EvenLevels.over(np.float32([-1.0, 0.1, 3.0]), 5)
    >>> levels.codes(np.float32([-1.0, 0.1, 3.0, 9.0])), levels.table()
    (array([0, 1, 4, 4], dtype=uint8), array([-1.,  0.,  1.,  2.,  3.], dtype=float32))
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.borrowed import borrowed
from dynaquant_core.config import require
from dynaquant_core.quantize.even_kernels import assign_even
from dynaquant_core.quantize.flat import flatten

__all__ = ["MOST_BINS", "EvenLevels", "bins_by_entropy", "host_values"]

Floats = NDArray[np.float32]

#: Codes are bytes.
MOST_BINS = 256


@dataclass(frozen=True, slots=True)
class EvenLevels:
    """``bins`` levels from ``low`` to ``high``, which are rounded to float32.

    Args:
        low: the lowest level.
        high: the highest level, not below ``low``.
        bins: number of levels, 2 to 256.

    Raises:
        ConfigError: the ends are not finite float32 in order, or there are too few or too many levels.
    """

    low: float
    high: float
    bins: int

    def __post_init__(self) -> None:
        ends = np.array([self.low, self.high], np.float32).tolist()
        good = math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] <= ends[1]
        require(good, f"EvenLevels: expected two finite ends in order, got {self.low!r} and {self.high!r}.")
        good = 2 <= self.bins <= MOST_BINS
        require(good, f"EvenLevels: bins must be from 2 to {MOST_BINS}, got {self.bins!r}.")
        object.__setattr__(self, "low", ends[0])
        object.__setattr__(self, "high", ends[1])

    @classmethod
    def over(cls, values: Floats, bins: int) -> EvenLevels:
        """Levels over the range of float32[n], n at least 1."""
        return cls(float(values.min()), float(values.max()), bins)

    def codes(self, values: Floats) -> NDArray[np.uint8]:
        """The nearest level of each value, uint8[n]; the upper one half-way between two."""
        span = self.high - self.low
        codes = np.empty(values.size, np.uint8)
        assign_even(values, self.low, (self.bins - 1) / span if span else 0.0, float(self.bins - 1), codes)
        return codes

    def table(self) -> Floats:
        """The value of each level, float32[bins], ascending."""
        return np.linspace(self.low, self.high, self.bins).astype(np.float32)


def bins_by_entropy(counts: NDArray[np.int64], least: int, most: int) -> int:
    """The power of two that the entropy of a layer's codes asks for (QD-Compressor; our reading).

    Args:
        counts: how often each code occurs at ``most`` bins, int64[at most ``most``].
        least: fewest bins.
        most: most bins.

    Returns:
        2^ceil(H) for an entropy of H bits, held within the two.

    Example:
        >>> bins_by_entropy(np.array([5, 5, 5, 5]), 2, 256), bins_by_entropy(np.array([5, 5, 5, 5]), 8, 256)
        (4, 8)
    """
    share = counts[counts > 0] / counts.sum()
    entropy = -float(share @ np.log2(share))
    whole = max(0, math.ceil(entropy - 1e-9))  # equal counts must not be lifted by a rounding
    return min(max(1 << whole, least), most)


def host_values(tensor: Tensor) -> Floats:
    """A floating tensor's values in host memory, float32[n]; a view where it is that already.

    Raises:
        UnsupportedStateError: the dtype is not one that is quantised.

    Example:
        >>> import torch
        >>> host_values(torch.ones(2, 2, dtype=torch.bfloat16)).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    values: Floats = borrowed(flatten(tensor).to("cpu").float())
    return values
