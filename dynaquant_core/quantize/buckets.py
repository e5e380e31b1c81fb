"""Buckets of relative width: the finite set of values that sketches, K-means and code look-up see.

Guarantee: a bucket's value is within `relative_error` of every normal float32 (from 2^-126 up) that falls
into it, for `BitBuckets(6)` within 1/129 = 0.775%.  Smaller magnitudes fall into the zero bucket or, for bit
patterns, into buckets of equal width 2^-(126 + m).

Buckets are numbered ascending by value.  Signed ones number ``2 M - 1`` for ``M`` magnitudes, zero in the
middle; unsigned ones number ``M``, zero first, and count a negative number by its magnitude.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.errors import ConfigError
from dynaquant_core.quantize.cells import LARGEST, Cells, build_cells

__all__ = ["BitBuckets", "Buckets", "LogBuckets"]

#: Bits of float32's mantissa.
MANTISSA = 23


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Everything that follows from a scheme's parameters; built once per scheme and shared."""

    edges: NDArray[np.float64]
    values: NDArray[np.float64]
    limits: NDArray[np.float32]
    cells: Cells


class Buckets(ABC):
    """A partition of the finite float32 numbers; equal parameters make equal (and hashable) schemes."""

    signed: bool

    @abstractmethod
    def _tables(self) -> Tables:
        """The scheme's tables, from the cache."""

    @property
    @abstractmethod
    def relative_error(self) -> float:
        """Largest relative distance of a normal float32 from its bucket's value."""

    @property
    def size(self) -> int:
        """Number of buckets."""
        return int(self.values.size)

    @property
    def values(self) -> NDArray[np.float64]:
        """float64[size], ascending: 2ab/(a+b) of each bucket's edges a and b; 0 for the zero bucket."""
        return self._tables().values

    @property
    def edges(self) -> NDArray[np.float64]:
        """float64[size + 1], ascending: bucket i lies between edges i and i + 1."""
        return self._tables().edges

    @property
    def limits(self) -> NDArray[np.float32]:
        """float32[M], ascending: the largest magnitude in each magnitude bucket, the zero bucket first."""
        return self._tables().limits

    @property
    def cells(self) -> Cells:
        """How kernels get from the bits of a float32 to its bucket."""
        return self._tables().cells

    @property
    def magnitudes(self) -> int:
        """Number M of magnitude buckets, the zero bucket included."""
        return int(self.limits.size)

    @abstractmethod
    def unsigned(self) -> Buckets:
        """The same scheme over magnitudes."""

    def bucket_of(self, numbers: NDArray[Any]) -> NDArray[np.int64]:
        """Bucket index of each number.

        Args:
            numbers: floating array of any shape, taken as float32; infinities fall into the last bucket.

        Returns:
            int64 array of the same shape.

        Example:
            >>> buckets = BitBuckets(6)
            >>> index = buckets.bucket_of(np.array([-1.0, 0.0, 0.3]))
            >>> buckets.values[index].round(3).tolist()
            [-1.008, 0.0, 0.299]
        """
        bits = np.asarray(numbers, dtype=np.float32, order="C").view(np.uint32)
        return self.cells.bucket[self.cells.of(bits)]


@dataclass(frozen=True)
class BitBuckets(Buckets):
    """Buckets cut out of float32 bit patterns: exponent and leading mantissa bits (ours; one shift a weight).

    Args:
        mantissa_bits: m, 4 to 10; relative error 1 / (2^(m+1) + 1).
        signed: whether negative numbers have buckets of their own.

    Raises:
        ConfigError: ``mantissa_bits`` is not a whole number from 4 to 10.

    Example:
        >>> BitBuckets(6).relative_error <= 0.00776
        True
    """

    mantissa_bits: int = 6
    signed: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.mantissa_bits, int) or not 4 <= self.mantissa_bits <= 10:
            raise ConfigError(
                f"BitBuckets: mantissa_bits must be a whole number from 4 to 10, got {self.mantissa_bits!r}."
            )

    @property
    def relative_error(self) -> float:
        """1 / (2^(m+1) + 1)."""
        return 1.0 / (2.0 ** (self.mantissa_bits + 1) + 1)

    def unsigned(self) -> BitBuckets:
        """The same scheme over magnitudes."""
        return BitBuckets(self.mantissa_bits, signed=False)

    def _tables(self) -> Tables:
        return bit_tables(self.mantissa_bits, self.signed)


@dataclass(frozen=True)
class LogBuckets(Buckets):
    """The published buckets: key = ceil(log_gamma |x|), gamma = (1 + alpha)/(1 - alpha) (paper A.1).

    Deviation: keys start where float32 becomes subnormal; what is smaller shares the zero bucket.

    Args:
        alpha: relative error, 0.001 to 0.1 (paper: 0.01).
        signed: whether negative numbers have buckets of their own.

    Raises:
        ConfigError: ``alpha`` is out of range.

    Example:
        >>> buckets = LogBuckets(0.01, signed=False)
        >>> bool(buckets.edges[buckets.bucket_of(np.float32(1.0))] < 1.0)
        True
    """

    alpha: float = 0.01
    signed: bool = True

    def __post_init__(self) -> None:
        if not 0.001 <= self.alpha <= 0.1:
            raise ConfigError(f"LogBuckets: alpha must be in [0.001, 0.1], got {self.alpha!r}.")

    @property
    def relative_error(self) -> float:
        """Alpha."""
        return self.alpha

    def unsigned(self) -> LogBuckets:
        """The same scheme over magnitudes."""
        return LogBuckets(self.alpha, signed=False)

    def _tables(self) -> Tables:
        return log_tables(self.alpha, self.signed)


@lru_cache(maxsize=32)
def bit_tables(mantissa_bits: int, signed: bool) -> Tables:
    """Tables of `BitBuckets`."""
    shift = MANTISSA - mantissa_bits
    firsts = np.arange(255 << mantissa_bits, dtype=np.uint32) << np.uint32(shift)
    edges = np.append(widened(firsts), 2.0**128)
    limits = (firsts + np.uint32((1 << shift) - 1)).view(np.float32)
    return assemble(edges, limits, shift, signed=signed)


@lru_cache(maxsize=32)
def log_tables(alpha: float, signed: bool) -> Tables:
    """Tables of `LogBuckets`; a cell must be narrower than a bucket, so that it is split once at most."""
    gamma = (1.0 + alpha) / (1.0 - alpha)
    lowest = math.floor(math.log(2.0**-126, gamma))
    highest = math.ceil(math.log(float(LARGEST), gamma))
    powers = gamma ** np.arange(lowest, highest + 1, dtype=np.float64)
    limits = narrowed(np.minimum(powers, float(LARGEST))).view(np.float32)
    limits[-1] = LARGEST
    shift = MANTISSA - math.ceil(-math.log2(gamma - 1.0))
    return assemble(np.concatenate(([0.0], powers)), limits, shift, signed=signed)


def widened(bits: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Values of float32 bit patterns that are not negative.

    In integers and float64, here and in `narrowed`: where subnormal numbers are flushed (torch has a switch),
    float32 makes zeros of them, and codes would depend on it.
    """
    exponent, mantissa = (bits >> np.uint32(MANTISSA)).astype(np.int32), bits & np.uint32((1 << MANTISSA) - 1)
    whole = mantissa.astype(np.float64) + np.where(exponent > 0, 2.0**MANTISSA, 0.0)
    values: NDArray[np.float64] = np.ldexp(whole, np.maximum(exponent, 1) - (127 + MANTISSA))
    return values


def narrowed(numbers: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Bit patterns of the largest float32 numbers that are not above some, which float32 has room for."""
    fraction, exponent = np.frexp(numbers)  # number = fraction * 2^exponent, fraction from 1/2 up
    lowest = np.maximum(exponent, -125)  # from here down float32 has one grid
    whole = np.floor(np.ldexp(fraction, exponent - lowest + MANTISSA + 1)).astype(np.uint32)
    bits: NDArray[np.uint32] = whole + ((lowest + 125).astype(np.uint32) << np.uint32(MANTISSA))
    return bits


def assemble(edges: NDArray[np.float64], limits: NDArray[np.float32], shift: int, *, signed: bool) -> Tables:
    """Tables from the magnitude buckets' edges (float64[M + 1], from 0) and limits (float32[M])."""
    low, high = edges[:-1], edges[1:]
    values = 2.0 * low * high / (low + high)
    if signed:
        edges = np.concatenate((-edges[:0:-1], edges[1:]))
        values = np.concatenate((-values[:0:-1], values))
    tables = Tables(edges, values, limits, build_cells(limits, shift, signed=signed))
    for array in (tables.edges, tables.values, tables.limits):
        array.flags.writeable = False
    return tables
