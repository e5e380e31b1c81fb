"""Writing the weights of all pruned layers of a CUDA device to their places, in one kernel.

What starting a kernel takes is what an expansion costs there, not the bytes that it moves.  Layers are found
by their addresses, which a table on the device holds.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from dynaquant_core.device_jit import on

__all__ = ["scatter"]

_TYPES: Final = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@triton.jit
def _scatter(flat, layers, blocks, element: tl.constexpr, size: tl.constexpr):
    block = blocks + 2 * tl.program_id(0)
    layer = layers + 4 * tl.load(block)
    at = tl.load(block + 1).to(tl.int64) * size + tl.arange(0, size)
    index = tl.load(layer + 1).to(tl.pointer_type(tl.int32))
    kept = at < tl.load(layer + 3)
    place = tl.load(index + at, mask=kept, other=0)
    value = tl.load(flat + tl.load(layer + 2) + at, mask=kept, other=0.0)
    if element == tl.bfloat16:  # to even, in whole numbers: Triton's interpreter would cut it off
        bits = value.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        words = tl.where(value == value, rounded, 0x7FC0).to(tl.int16)
        tl.store(tl.load(layer).to(tl.pointer_type(tl.int16)) + place, words, mask=kept)
    else:
        tl.store(tl.load(layer).to(tl.pointer_type(element)) + place, value.to(element), mask=kept)


def scatter(flat: Tensor, layers: Tensor, blocks: Tensor, dtype: torch.dtype, size: int) -> None:
    """target[index[i]] = flat[offset + i] of each layer, rounded as torch rounds; all else stays.

    Args:
        flat: float32, on the device.
        layers: int64[n, 4], on the device: address of the target, address of its int32 index, offset, kept.
        blocks: int32[m, 2], on the device: a layer, and which run of ``size`` of its kept weights.
        dtype: of all the targets.
        size: a power of two.
    """
    if len(blocks):
        with on(flat.device):
            _scatter[(len(blocks),)](flat, layers, blocks, _TYPES[dtype], size)
