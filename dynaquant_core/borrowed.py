"""A tensor's memory as a NumPy array, without a mark on the tensor.

`Tensor.numpy` makes its storage one that cannot be resized, for good: of live weights, and of what a load
gives.  Sharded training resizes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["borrowed"]


def borrowed(flat: Tensor) -> NDArray[Any]:
    """The memory of a contiguous CPU tensor, which lives as long as the array.

    Nobody may resize the tensor while the array is used.

    Args:
        flat: of a dtype that NumPy has, outside autograd.

    Example:
        >>> import torch
        >>> numbers = torch.zeros(3)
        >>> borrowed(numbers)[1] = 2
        >>> numbers, numbers.untyped_storage().resizable()
        (tensor([0., 2., 0.]), True)
    """
    dtype = np.dtype(str(flat.dtype).removeprefix("torch."))
    if not flat.numel():
        return np.empty(tuple(flat.shape), dtype)
    array: NDArray[Any] = np.asarray(_Memory(flat, dtype))
    return array


class _Memory:
    """What NumPy asks for the memory, and holds as long as its array."""

    def __init__(self, flat: Tensor, dtype: np.dtype[Any]) -> None:
        self.holds = flat
        self.__array_interface__ = {
            "shape": tuple(flat.shape),
            "typestr": dtype.str,
            "data": (flat.data_ptr(), False),
            "version": 3,
        }
