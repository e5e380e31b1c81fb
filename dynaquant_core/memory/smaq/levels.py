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

__all__ = ["Gaps", "Geometry", "Levels", "gaps_at", "within_ends"]

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


class Gaps(NamedTuple):
    """What a decoder that keeps to a tensor's ends makes of the gaps between levels that those cut; float32.

    An end that cuts none has a stretch of 0, and infinity to add, which leaves values as they are.

    Args:
        lowest: the lower end, to which the lower level of its gap is lifted.
        stretch: the gap's width, of what is left of it.
        base: that level.
        highest, stretch_down, top: the same of the upper end, to which the upper level is lowered.
    """

    lowest: float = 0.0
    stretch: float = 0.0
    base: float = math.inf
    highest: float = 0.0
    stretch_down: float = 0.0
    top: float = -math.inf


def gaps_at(levels: Levels, mean: float, std: float, low: float, high: float) -> Gaps | None:
    """The gaps that two ends cut; None: both are levels, or beyond all of them.

    Args:
        levels: where the levels lie.
        mean: what values are relative to.
        std: in what they are measured.
        low: no decoded value is below it; -infinity: any may be.
        high: no decoded value is above it; infinity: any may be.

    Example:
        >>> gaps_at(Levels(2, 3, limit=3.0), 0.0, 1.0, 0.5, math.inf)[:3]
        (0.5, 4.0, -1.0)
    """
    edges = np.unique(np.concatenate(levels.tables(mean, std)))
    lower, upper = cut(edges, low), cut(edges, high)
    found, lowest, highest = Gaps(), np.float32(low), np.float32(high)
    if lower is not None:
        below, above = lower
        stretch = (above - below) / (above - lowest)
        found = found._replace(lowest=float(lowest), stretch=float(stretch), base=float(below))
        if lower == upper:  # what is between the ends is spread twice
            highest = min((highest - lowest) * stretch + below, above)
    if upper is not None:
        below, above = upper
        with np.errstate(over="ignore", divide="ignore"):
            stretch = (above - below) / (highest - below)
    if upper is not None and np.isfinite(stretch):
        found = found._replace(highest=float(highest), stretch_down=float(stretch), top=float(above))
    return None if lower is upper is None else found


def cut(edges: Floats, end: float) -> tuple[np.float32, np.float32] | None:
    """The levels around an end; None: it is one, or beyond all of them, or so near that none is between."""
    place = int(np.searchsorted(edges, np.float32(end)))
    if place in (0, edges.size) or edges[place] == np.float32(end):
        return None
    below, above = edges[place - 1], edges[place]
    with np.errstate(over="ignore"):
        stretches = (above - below) / np.array([above - np.float32(end), np.float32(end) - below])
    return (below, above) if np.isfinite(stretches).all() else None


def within_ends(values: Tensor, gaps: Gaps | None) -> Tensor:
    """Values for a decoder that keeps to a tensor's ends: drawn from these, they are unbiased.

    A level that is moved to an end and its neighbour are nearer to each other than the two that a draw is
    between.  So values in that gap are spread over all of it, in proportion: then the chance of either is
    right for the two that are decoded.  The others stay as they are.

    Args:
        values: floating[n], none beyond the ends.
        gaps: of `gaps_at`.

    Returns:
        float32[n], or ``values``, where no gap is cut.

    Example:
        >>> gaps = gaps_at(Levels(2, 3, limit=3.0), 0.0, 1.0, 0.5, 3.0)
        >>> within_ends(torch.tensor([0.5, 0.75, 3.0]), gaps).tolist()
        [-1.0, 0.0, 3.0]
    """
    if gaps is None:
        return values
    values = values.float()
    # Beyond its gap a value is less, or more, than what it would become.
    spread = torch.minimum((values - gaps.lowest).mul_(gaps.stretch).add_(gaps.base), values)
    return torch.maximum((spread - gaps.highest).mul_(gaps.stretch_down).add_(gaps.top), spread)
