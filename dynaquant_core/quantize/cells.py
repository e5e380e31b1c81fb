"""Cells: the runs of float32 numbers that share their leading bits, and the bucket of each.

A shift finds a number's cell and one table its bucket; kernels know nothing else about a bucket scheme.  A
scheme whose limits are not bit patterns (the published logarithmic key) splits some cells once, and a cell
then has two halves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.quantize import kernels

__all__ = ["INFINITY", "LARGEST", "NO_SPLIT", "SIGN_MASK", "Cells", "build_cells"]

#: The largest finite float32, and the bit patterns of infinity and of everything but the sign.
LARGEST = np.finfo(np.float32).max
INFINITY = 0x7F800000
SIGN_MASK = 0x7FFFFFFF

#: A split that no magnitude lies above; fits a signed 32-bit word, which is all that torch compares.
NO_SPLIT = 0x7FFFFFFF


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """From float bits to buckets.

    Args:
        shift: right shift that turns 32 bits into the number of a cell, the sign bit leading.
        bucket: int64[c], bucket of each cell; int64[2 c], of each half, where cells are split.
        split: uint32[c], bits of the largest magnitude in a cell's lower half; empty where none is split.
    """

    shift: int
    bucket: NDArray[np.int64]
    split: NDArray[np.uint32]

    @property
    def size(self) -> int:
        """Number of cells (halves, where cells are split)."""
        return int(self.bucket.size)

    def of(self, bits: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Cell of each bit pattern: uint32 array to int64 array of the same shape."""
        cell = (bits >> np.uint32(self.shift)).astype(np.int64)
        if self.split.size:
            cell = 2 * cell + ((bits & np.uint32(SIGN_MASK)) > self.split[cell])
        return cell

    def fold(self, counts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """Sums counts by cell into counts by bucket: int64[cells] to int64[size]."""
        folded = np.zeros(size, dtype=np.int64)
        kernels.fold(counts, self.bucket, folded)
        return folded

    def fold_energy(self, energy: NDArray[np.float64], size: int) -> NDArray[np.float64]:
        """Sums float64[cells] into float64[size]."""
        return np.bincount(self.bucket, weights=energy, minlength=size).astype(np.float64)

    def non_finite(self, counts: NDArray[np.int64]) -> int:
        """How many of the counted numbers are infinite or NaN."""
        half = self.size // 2
        first = (INFINITY >> self.shift) * (2 if self.split.size else 1)
        return int(counts[first:half].sum() + counts[half + first :].sum())


def build_cells(limits: NDArray[np.float32], shift: int, *, signed: bool) -> Cells:
    """Cells of magnitude buckets given by their largest members.

    Args:
        limits: float32[M], ascending, the last the largest finite number.
        shift: see `Cells`; no cell may meet more than two buckets.
        signed: whether negative numbers have buckets of their own (see `buckets`).
    """
    ends = limits.view(np.uint32).astype(np.int64)
    first = np.arange(1 << (31 - shift), dtype=np.int64) << shift
    low = np.minimum(np.searchsorted(ends, first), limits.size - 1)
    high = np.minimum(np.searchsorted(ends, first + (1 << shift) - 1), limits.size - 1)
    assert int((high - low).max()) <= 1, "a cell meets three buckets: the shift is too large"
    split = np.where(high > low, ends[low], NO_SPLIT).astype(np.uint32)
    is_split = bool((high > low).any())
    magnitude = np.stack((low, high), axis=1).reshape(-1) if is_split else low
    zero = limits.size - 1 if signed else 0
    below = zero - magnitude if signed else magnitude
    bucket = np.concatenate((zero + magnitude, below)).astype(np.int64)
    splits = np.concatenate((split, split)) if is_split else split[:0]
    return Cells(shift, bucket, splits)
