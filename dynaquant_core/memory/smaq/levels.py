"""Where SmaQ's levels lie: a box of narrow gaps in the middle, wider ones outside of it (SmaQ, sec. 3).

A value is looked at as z = (x - mean) / std.  Inside the box, |z| <= ``box``, 2^(inlier_bits - 1) even levels
reach from one wall to the other; outside, 2^(outlier_bits - 2) even levels on each side reach from the box to
``limit``, and what lies beyond has the outermost.  One bit of each width says on which side of the wall a
value is.  The publication gives widths, box and limit; that both walls are levels on both sides, so that no
rounding crosses the wall, is our reading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.config import require, require_number

__all__ = ["Gap", "Geometry", "Levels", "above_floor", "gap_at"]

Floats = NDArray[np.float32]

#: Largest limit: further out a float32 has too few bits for the gaps.
FURTHEST = 64.0

LARGEST = float(np.finfo(np.float32).max)


class Geometry(NamedTuple):
    """What the kernels need to know: float32 scalars but for the sign's bit.

    Args:
        box, limit: in standard deviations.
        inner_scale, outer_scale: levels a standard deviation.
        inner_last, outer_last: the highest level, of one side.
        sign: what a negative outlier's code has added.
    """

    box: np.float32
    limit: np.float32
    inner_scale: np.float32
    inner_last: np.float32
    outer_scale: np.float32
    outer_last: np.float32
    sign: np.uint8


@dataclass(frozen=True, slots=True)
class Levels:
    """Widths and walls.

    Args:
        inlier_bits: bits of a value inside the box, its flag included, 2 to 9.
        outlier_bits: bits of a value outside, flag and sign included, 3 to 9.
        box: half the width of the box, in standard deviations.
        limit: where values are clamped, in standard deviations; above ``box``, at most 64.

    Raises:
        ConfigError: a value is of the wrong type or out of range.

    Example:
        >>> inside, outside = Levels().bounds
        >>> round(inside * 31, 6), round(outside * 63, 6)
        (2.0, 1.0)
    """

    inlier_bits: int = 6
    outlier_bits: int = 8
    box: float = 1.0
    limit: float = 2.0

    def __post_init__(self) -> None:
        for name, least in (("inlier_bits", 2), ("outlier_bits", 3)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and least <= value <= 9
            require(whole, f"SmaQ: {name} must be a whole number from {least} to 9, got {value!r}.")
        require_number("SmaQ", "box", self.box, 2.0**-6, FURTHEST)
        require_number("SmaQ", "limit", self.limit, 2.0**-6, FURTHEST)
        good = math.isfinite(self.limit) and self.limit > self.box
        require(good, f"SmaQ: limit must be above box ({self.box}), got {self.limit!r}.")

    @property
    def inner_width(self) -> int:
        """Bits of an inlier's code, without its flag."""
        return self.inlier_bits - 1

    @property
    def outer_width(self) -> int:
        """Bits of an outlier's code, its sign included, without its flag."""
        return self.outlier_bits - 1

    @property
    def bounds(self) -> tuple[float, float]:
        """Gaps inside and outside, in standard deviations: no error within the limit reaches them."""
        inner, outer = 2**self.inner_width - 1, 2 ** (self.outer_width - 1) - 1
        return 2 * self.box / inner, (self.limit - self.box) / outer

    def geometry(self) -> Geometry:
        """The same for the kernels."""
        inside, outside = self.bounds
        return Geometry(
            np.float32(self.box),
            np.float32(self.limit),
            np.float32(1 / inside),
            np.float32(2**self.inner_width - 1),
            np.float32(1 / outside),
            np.float32(2 ** (self.outer_width - 1) - 1),
            np.uint8(1 << (self.outer_width - 1)),
        )

    def tables(self, mean: float, std: float) -> tuple[Floats, Floats]:
        """What each code stands for: (float32[2^inner_width], float32[2^outer_width])."""
        found = (mean + std * places_of(self)).clip(-LARGEST, LARGEST).astype(np.float32)
        return found[: 2**self.inner_width], found[2**self.inner_width :]


@lru_cache(maxsize=64)
def places_of(levels: Levels) -> NDArray[np.float64]:
    """Where the levels lie, in deviations: the inliers' and behind them the outliers', by their codes."""
    inside, outside = levels.bounds
    inner = np.arange(2**levels.inner_width) * inside - levels.box
    side = np.arange(2 ** (levels.outer_width - 1)) * outside + levels.box
    return np.concatenate((inner, side, -side))


class Gap(NamedTuple):
    """What a decoder that lifts values to a floor makes of a gap between two levels; float32 values.

    Args:
        lowest: the floor, to which the gap's lower level is lifted.
        stretch: the gap's width, of what is left of it.
        base: the lower level.
    """

    lowest: float
    stretch: float
    base: float


def gap_at(levels: Levels, mean: float, std: float, floor: float) -> Gap | None:
    """The gap that a floor cuts; None: it is a level, or below or above all of them.

    Args:
        levels: where the levels lie.
        mean: what values are relative to.
        std: in what they are measured.
        floor: no decoded value is below it.
    """
    edges = np.unique(np.concatenate(levels.tables(mean, std)))
    place, lowest = int(np.searchsorted(edges, np.float32(floor))), np.float32(floor)
    if place in (0, edges.size) or edges[place] == lowest:
        return None
    below, above = edges[place - 1], edges[place]
    with np.errstate(over="ignore"):
        stretch = (above - below) / (above - lowest)
    return Gap(float(lowest), float(stretch), float(below)) if np.isfinite(stretch) else None


def above_floor(values: Tensor, gap: Gap | None) -> Tensor:
    """Values for a decoder that lifts what is below a floor to it: drawn from these, they are unbiased.

    The lifted level and the one above it are nearer to each other than the two that a draw is between.  So
    values in that gap are spread over all of it, in proportion: then the chance of the upper one is right for
    the two that are decoded.  The others stay as they are.

    Args:
        values: floating[n], none below the floor.
        gap: of `gap_at`.

    Returns:
        float32[n], or ``values``, where no gap is cut.

    Example:
        >>> gap = gap_at(Levels(2, 3, limit=3.0), 0.0, 1.0, 0.5)
        >>> above_floor(torch.tensor([0.5, 0.75, 3.0]), gap).tolist()
        [-1.0, 0.0, 3.0]
    """
    if gap is None:
        return values
    spread = (values.float() - gap.lowest).mul_(gap.stretch).add_(gap.base)
    return torch.minimum(spread, values.float())  # above the gap a value is less than what it would become
