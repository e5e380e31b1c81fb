"""Most of a tensor becomes zero, the rest one of a few values (ExCP, arXiv 2406.11257, sec. 3).

All arrays are flat and on the CPU; results do not depend on threads.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.quantize.buckets import BitBuckets
from dynaquant_core.quantize.kmeans import solve
from dynaquant_core.quantize.seam import histogram

__all__ = ["above_mean", "above_median", "centre_codes", "centre_values"]

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

LARGEST = float(np.finfo(np.float32).max)

#: K-means sees survivors to within 0.8%; centres are then made of the true values.
BUCKETS = BitBuckets(6)


def above_median(values: Floats, factor: float) -> Mask:
    """Which values are larger in magnitude than ``factor`` medians of the magnitudes; never a zero.

    Args:
        values: float32[n], finite.
        factor: at least 0, perhaps infinite.

    Example:
        >>> above_median(np.float32([1, -2, 3, 0]), 1.0).tolist()
        [False, True, True, False]
    """
    sizes = np.abs(values)
    if not sizes.size:
        return np.zeros(0, np.bool_)
    low, high = (sizes.size - 1) // 2, sizes.size // 2
    middles = np.partition(sizes, (low, high))
    return _above(sizes, factor, 0.5 * (float(middles[low]) + float(middles[high])))


def above_mean(values: Floats, factor: float) -> Mask:
    """Which values are larger in magnitude than ``factor`` means of the magnitudes; never a zero.

    Example:
        >>> above_mean(np.float32([1, -1, 10, 0]), 2.0).tolist()
        [False, False, True, False]
    """
    sizes = np.abs(values)
    return _above(sizes, factor, float(sizes.mean(dtype=np.float64)) if sizes.size else 0.0)


def _above(sizes: Floats, factor: float, middle: float) -> Mask:
    """An infinite factor of nothing is nothing."""
    mask: Mask = sizes > np.float32(min(factor * middle, LARGEST) if middle else 0.0)
    return mask


def centre_codes(values: Floats, kept: Mask, count: int) -> tuple[NDArray[np.uint8], Floats]:
    """Codes of a tensor: 0 where it is pruned, else the number of the nearest centre, from 1.

    Args:
        values: float32[n], finite.
        kept: bool[n].
        count: centres, at most 255.

    Returns:
        (uint8[n], float32[count] ascending; those that are not needed are 0, at the end).

    Example:
        >>> codes, centres = centre_codes(np.float32([1, 5, 1.5, 0]), np.array([1, 1, 1, 0], bool), 2)
        >>> codes.tolist(), centres.tolist()
        ([1, 2, 1, 0], [1.25, 5.0])
    """
    codes, centres = np.zeros(values.size, np.uint8), np.zeros(count, np.float32)
    survivors = values[kept]
    if survivors.size:
        weights = histogram(torch.from_numpy(survivors), BUCKETS).astype(np.float64)
        rough = solve(BUCKETS.values, weights, count).centres(count)
        own = np.searchsorted((0.5 * (rough[1:] + rough[:-1])).astype(np.float32), survivors)
        members = np.bincount(own, minlength=rough.size)
        sums = np.bincount(own, survivors, minlength=rough.size)
        centres[: rough.size] = np.where(members > 0, sums / np.maximum(members, 1), rough)
        codes[kept] = own + 1
    return codes, centres


def centre_values(codes: NDArray[np.uint8], centres: Floats) -> Floats:
    """What a reader gets: zero, or a centre; float32[n].

    Example:
        >>> centre_values(np.uint8([0, 2]), np.float32([1.25, 5.0])).tolist()
        [0.0, 5.0]
    """
    found: Floats = np.concatenate([np.zeros(1, np.float32), centres])[codes]
    return found
