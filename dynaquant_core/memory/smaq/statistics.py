"""Mean and standard deviation of a tensor: of all of it, of a sample, or from its range (SmaQ, future work).

The published scheme takes exact statistics of every tensor.  Its authors name three cheaper ways: a reservoir
sample, the range, and statistics that are used again; `coder.Coder` does the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from dynaquant_core.errors import UnsupportedStateError
from dynaquant_core.quantize.lattice.sums import device_sums, host_sums

__all__ = ["METHODS", "Ends", "Method", "Statistics", "ends_from", "ends_of", "measure", "spread_of_range"]

Method = Literal["exact", "sample", "range"]
METHODS = get_args(Method)

#: Sums are of distances from the mean of this many values, so that a large mean does not eat the spread.
PIVOT = 4096

#: A smaller spread counts as none: its reciprocal is not a finite float32.
SMALLEST = float(np.finfo(np.float32).tiny)
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean and population standard deviation, float32 values; ``std`` 0: every value counts as the mean."""

    mean: float
    std: float

    @classmethod
    def of(cls, mean: float, std: float) -> Statistics:
        """Rounds both to float32; a spread below 2^-126 becomes 0."""
        std = min(std, LARGEST)
        return cls(float(np.float32(mean)), float(np.float32(std)) if std >= SMALLEST else 0.0)


@dataclass(frozen=True, slots=True)
class Ends:
    """Lowest and highest value of a tensor, finite in float32."""

    low: float
    high: float


def ends_of(flat: Tensor) -> Ends:
    """Lowest and highest of a flat floating tensor, at least one value.

    Raises:
        UnsupportedStateError: a value is NaN, infinite, or beyond float32.

    Example:
        >>> ends_of(torch.tensor([2.0, -1.0]))
        Ends(low=-1.0, high=2.0)
    """
    low, high = torch.stack(torch.aminmax(flat)).tolist()
    return ends_from(low, high, flat)


def ends_from(low: float, high: float, flat: Tensor) -> Ends:
    """The same where the lowest and the highest are known; NaN where a value is not finite."""
    if not (low >= -LARGEST and high <= LARGEST):  # NaN fails both
        raise UnsupportedStateError(
            f"SmaQ: a {str(flat.dtype).removeprefix('torch.')} tensor of {flat.numel()} values holds NaN, "
            "infinity or a value beyond float32; leave it uncoded, or look for where it came from."
        )
    return Ends(low, high)


def measure(flat: Tensor, ends: Ends, method: Method, sample: int, generator: torch.Generator) -> Statistics:
    """Statistics of a flat tensor.

    Args:
        flat: floating[n], n at least 1, finite.
        ends: of `ends_of`.
        method: ``"exact"``; ``"sample"``: of one value drawn from each of ``sample`` equal pieces, which is
            what a reservoir of that size is for where the tensor is at hand; ``"range"``: the exact mean, and
            the spread that a normal sample of n values with this range has.
        sample: values looked at; all of them where there are not more.
        generator: on the CPU; drawn from only where a sample is.

    Example:
        >>> measure(torch.tensor([1.0, 3.0]), Ends(1.0, 3.0), "exact", 0, torch.Generator())
        Statistics(mean=2.0, std=1.0)
    """
    if ends.low == ends.high:
        return Statistics.of(ends.low, 0.0)
    if method == "range":
        return Statistics.of(_moments(flat)[0], spread_of_range(ends.high - ends.low, flat.numel()))
    if method == "sample" and sample < flat.numel():
        flat = flat[_places(flat.numel(), sample, generator).to(flat.device)]
    return Statistics.of(*_moments(flat))


def spread_of_range(width: float, count: int) -> float:
    """Standard deviation of ``count`` normal values whose highest and lowest are ``width`` apart, on average.

    The published width / (2 sqrt(2 ln n)) is the limit for many values and too small for those that there
    are (by 7% at a million); Blom's plotting position calibrates it to within 1% from ten values
    on (5% for two).

    Example:
        >>> round(spread_of_range(9.725, 1_000_000), 2)
        1.0
    """
    return width / (2 * NormalDist().inv_cdf((count - 0.375) / (count + 0.25)))


def _places(count: int, sample: int, generator: torch.Generator) -> Tensor:
    """int64[sample]: a place in each of as many equal pieces of ``count`` values."""
    inside = torch.rand(sample, dtype=torch.float64, generator=generator, device=generator.device)
    places = (torch.arange(sample, dtype=torch.float64, device=generator.device) + inside) * (count / sample)
    return places.to(torch.int64).clamp_(max=count - 1)


def _moments(flat: Tensor) -> tuple[float, float]:
    """Mean and population standard deviation, summed in float64; the same for any number of threads."""
    pivot = float(flat[:PIVOT].mean(dtype=torch.float64))
    sums = host_sums if flat.device.type == "cpu" else device_sums
    distance, square = (float(total) / flat.numel() for total in sums(flat, pivot))
    return pivot + distance, math.sqrt(max(square - distance * distance, 0.0))
