"""Places of a sample that meets every row, column and tap of a tensor evenly (ours).

Places at even distances do not: where the distance shares a factor with a width, they lie in some columns
only, or in one tap of every kernel, and a mask or a scale that goes by columns or taps is not seen.  So a
tensor is cut into stretches of one length, and in each one place is drawn.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

__all__ = ["scattered"]

#: SplitMix64's step, multipliers and shifts.
GOLDEN, FIRST, SECOND = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


# Models have few sizes of tensors: 8 MiB of 4096 places each, and 8 more of the sample that tells movement.
@lru_cache(maxsize=256)
def scattered(count: int, most: int) -> Tensor:
    """Places among ``count``, at most so many, in order; the same ones each time.

    Args:
        count: of values in a tensor; below 2^44.
        most: so many places; below 2^20.  Of no more values than that all are taken.

    Returns:
        int64[n] on the CPU; shared, and not to be written to.

    Example:
        >>> scattered(3, 8).tolist()
        [0, 1, 2]
        >>> (scattered(1000, 10) // 100).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if count <= most:
        return torch.arange(count, device="cpu")
    ends = np.arange(most + 1, dtype=np.uint64) * np.uint64(count) // np.uint64(most)
    words = np.arange(1, most + 1, dtype=np.uint64) * GOLDEN
    words = (words ^ (words >> SHIFTS[0])) * FIRST
    words = (words ^ (words >> SHIFTS[1])) * SECOND
    words ^= words >> SHIFTS[2]
    return torch.from_numpy((ends[:-1] + words % np.diff(ends)).astype(np.int64))
