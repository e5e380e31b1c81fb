"""An even sample of a large tensor, in blocks: enough to predict sizes within 2%, at a fraction of a pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["in_whole", "sample", "stride_of"]

#: Weights of a state that are looked at to predict sizes; of larger states a sample stands for all.
SAMPLE = 1 << 22
BLOCK = 4096

#: No tensor's sample is smaller than this, unless the tensor is.
LEAST = 1 << 15


def stride_of(count: int, total: int) -> int:
    """Of how many blocks one is sampled, for a tensor of ``count`` weights in a state of ``total``.

    Example:
        >>> stride_of(1 << 20, 1 << 22), stride_of(1 << 20, 1 << 24)
        (1, 4)
    """
    return max(1, min(total // SAMPLE, count // LEAST))


def sample(flat: Any, stride: int) -> Any:
    """Every ``stride``-th block of `BLOCK` elements of a flat array or tensor, end to end."""
    if stride == 1:
        return flat
    whole = flat[: len(flat) // (BLOCK * stride) * BLOCK * stride]
    return whole.reshape(-1, BLOCK * stride)[:, :BLOCK].reshape(-1)


def in_whole(positions: NDArray[np.int64], stride: int) -> NDArray[np.int64]:
    """Where the elements at ``positions`` of a `sample` stand in what it was taken from."""
    return positions // BLOCK * (BLOCK * stride) + positions % BLOCK if stride > 1 else positions
