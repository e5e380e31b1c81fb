"""How packed codes lie in memory, so that any chunk of them can be decoded apart.

The outliers' flags are one bitmask; inliers and outliers are packed each in a run of their own.  Every
`CHUNK` values begin at a whole byte in all three: a chunk's runs are filled up to groups of eight codes.
How many outliers each chunk has says where its runs begin; that and the filling is the container's overhead,
at most 15 bytes of 13,600 with the default widths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CHUNK", "Runs", "chunk_count", "chunk_sizes", "run_groups"]

#: Values a chunk; a multiple of 8, so that flags need no filling, and below 2^15, so that counts are int16.
CHUNK = 1 << 14


def chunk_count(size: int) -> int:
    """Number of chunks of ``size`` values."""
    return -(-size // CHUNK)


def chunk_sizes(size: int) -> NDArray[np.int64]:
    """int64[chunks]: values in each chunk; all `CHUNK` but the last."""
    return np.minimum(size - np.arange(0, size, CHUNK), CHUNK)


@dataclass(frozen=True, slots=True)
class Runs:
    """Where the chunks' runs begin and end, in groups of eight codes.

    Args:
        inner: int64[chunks + 1], of inliers.
        outer: int64[chunks + 1], of outliers.

    Example:
        >>> runs = Runs.of(torch.tensor([3, 9]), CHUNK + 10)
        >>> runs.inner.tolist(), runs.outer.tolist()
        ([0, 2048, 2049], [0, 1, 3])
    """

    inner: Tensor
    outer: Tensor

    @classmethod
    def of(cls, outliers: Tensor, size: int) -> Runs:
        """The runs of ``size`` values with so many outliers a chunk, on the CPU."""
        counts = outliers.numpy().astype(np.int64)
        codes = np.stack((chunk_sizes(size) - counts, counts))
        ends = np.zeros((2, counts.size + 1), np.int64)
        np.cumsum((codes + 7) // 8, axis=1, out=ends[:, 1:])
        inner, outer = torch.from_numpy(ends)
        return cls(inner, outer)


def run_groups(outliers: Tensor, size: int) -> tuple[int, int]:
    """Groups of eight of all inliers and of all outliers: the last of `Runs`, sooner.

    Example:
        >>> run_groups(torch.tensor([3, 9]), CHUNK + 10)
        (2049, 3)
    """
    counts = outliers.numpy().astype(np.int64)
    inside = CHUNK - counts
    inside[-1] -= counts.size * CHUNK - size
    return int(((inside + 7) >> 3).sum()), int(((counts + 7) >> 3).sum())
