"""bfloat16 without a direction: rounded up or down by chance, so that right on average (ours).

A run that was restored from bfloat16 begins on its values.  Rounded to the nearest, all that moved by less
than half a step of it would be back at the next restore, as on a lattice whose offsets stayed.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.methods.words import LARGEST_HALF, Plain, plain_of
from dynaquant_core.quantize.flat import flatten
from dynaquant_core.quantize.lattice import offsets
from dynaquant_core.state.spec import TensorSpec

__all__ = ["rounded"]

#: Weights that are rounded at a time.
BLOCK = 1 << 18


def rounded(tensor: Tensor, key: int) -> Plain:
    """A finite tensor in bfloat16; its offsets say which way each weight goes.

    Each goes to one of the two values that it lies between, the likelier the nearer; none where it is one.
    None becomes infinite, nor in the tensor's own dtype.  Float64 is first rounded to float32.

    Args:
        tensor: floating, of any device.
        key: of `quantize.lattice.offset_key`.

    Example:
        >>> halves = rounded(torch.full((4000,), 1 + 2**-8), 5).tensor()
        >>> sorted({*halves.tolist()}), abs(float(halves.mean()) - 1 - 2**-8) < 2e-4
        ([1.0, 1.0078125], True)
    """
    if tensor.dtype == torch.bfloat16:
        return plain_of(tensor, bf16=True)
    flat = flatten(tensor)
    largest = LARGEST_HALF if tensor.dtype == torch.float16 else torch.finfo(torch.bfloat16).max
    words = np.empty(flat.numel(), np.uint16)
    for start in range(0, words.size, BLOCK):
        values = flat[start : start + BLOCK].to("cpu", torch.float32).numpy()
        words[start : start + BLOCK] = _words(values, offsets(key, values.size, start), np.float32(largest))
    return Plain(TensorSpec.of(tensor), words, bf16=True)


def _words(
    values: NDArray[np.float32], drawn: NDArray[np.float32], largest: np.float32
) -> NDArray[np.uint16]:
    """Patterns of values, uint16[n].

    Bits of a float order its magnitude, so that a whole number below 2^16, added to the lower half, carries
    into the upper one as often as the lower half is large.
    """
    carry = (drawn * np.float32(1 << 16) + np.float32(32767.5)).astype(np.uint32)
    found = ((values.view(np.uint32) + carry) >> 16).astype(np.uint16)
    most = np.uint16(largest.view(np.uint32) >> 16)
    held: NDArray[np.uint16] = (found & np.uint16(0x8000)) | np.minimum(found & np.uint16(0x7FFF), most)
    return held
