"""Any floating tensor as one flat run of float32, without a copy where it is one already."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.borrowed import borrowed
from dynaquant_core.errors import StateMismatchError, UnsupportedStateError

__all__ = ["FLOATS", "as_bits", "as_float32", "as_matching", "flatten", "host_view", "to_bfloat16"]

#: Dtypes that are quantised.
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

BFLOAT16_LARGEST = 0x7F7F


def flatten(tensor: Tensor) -> Tensor:
    """The tensor's values as a contiguous 1-D tensor of its own dtype and device, outside autograd.

    Its memory holds them: what torch only marks as negative is written out.

    Raises:
        UnsupportedStateError: the dtype is not one that is quantised.
    """
    if tensor.dtype not in FLOATS:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOATS)
        raise UnsupportedStateError(
            f"quantize: a {tensor.dtype} tensor of shape {tuple(tensor.shape)} cannot be quantised; "
            f"expected one of {known}; keep it exact."
        )
    return tensor.detach().resolve_neg().reshape(-1).contiguous()


def as_matching(gradient: Tensor, flat: Tensor) -> Tensor:
    """The gradient as a flat tensor on the device of ``flat``; raises StateMismatchError on another size."""
    if gradient.numel() != flat.numel():
        raise StateMismatchError(
            f"quantize: the gradient has {gradient.numel()} elements, its tensor {flat.numel()}; "
            "pass the gradient of this very tensor."
        )
    return flatten(gradient).to(flat.device)


def host_view(flat: Tensor) -> NDArray[Any]:
    """A CPU tensor's memory as a NumPy array; bfloat16, which NumPy lacks, as its uint16 patterns."""
    view = flat.view(torch.uint16) if flat.dtype == torch.bfloat16 else flat
    return borrowed(view.contiguous())


def as_float32(part: NDArray[Any]) -> NDArray[np.float32]:
    """A slice of a `host_view` as float32[n]: a view where it is float32, else a rounded copy."""
    if part.dtype == np.uint16:
        return (part.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return part.astype(np.float32, copy=False)


def as_bits(part: NDArray[Any]) -> NDArray[np.uint32]:
    """A slice of a `host_view` as the bit patterns of its float32 values, uint32[n]."""
    return as_float32(part).view(np.uint32)


def to_bfloat16(bits: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Rounds float32 bit patterns to the nearest bfloat16, ties to even; never to infinity.

    Args:
        bits: uint32[n], finite values.

    Returns:
        uint16[n]: bfloat16 patterns; what would round up to infinity is the largest finite bfloat16.

    Example:
        >>> hex(to_bfloat16(np.array([1.003], dtype=np.float32).view(np.uint32))[0])
        '0x3f80'
    """
    magnitude = bits & np.uint32(0x7FFFFFFF)
    rounded = (magnitude + np.uint32(0x7FFF) + ((magnitude >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    rounded = np.minimum(rounded, np.uint32(BFLOAT16_LARGEST))
    signs = (bits >> np.uint32(16)) & np.uint32(0x8000)
    pattern: NDArray[np.uint16] = (rounded | signs).astype(np.uint16)
    return pattern
