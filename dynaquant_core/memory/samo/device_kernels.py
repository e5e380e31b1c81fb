"""Kernels of a CUDA device for many layers at once: weights to their places, gradients from theirs.

What starting a kernel takes is what either costs there, not the bytes that it moves.  Layers are found by
their addresses, which a table on the device holds.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from dynaquant_core.device_jit import on

__all__ = ["COLUMNS", "gather", "scatter"]

_TYPES: Final = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}

#: Of the table that `gather` reads.
COLUMNS: Final = 7


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
            _scatter[(len(blocks),)](flat, layers, blocks, _TYPES[dtype], size, enable_fp_fusion=False)


@triton.jit(do_not_specialize=["count"])
def _gather(layers, count, inverse, size: tl.constexpr, columns: tl.constexpr):
    program = tl.program_id(0)
    low = program * 0
    high = low + count
    while high - low > 1:  # the last layer whose programs begin at this one or before
        middle = (low + high) // 2
        before = tl.load(layers + columns * middle + 6) <= program
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    layer = layers + columns * low
    at = (program - tl.load(layer + 6)) * size + tl.arange(0, size)
    kept = at < tl.load(layer + 5)
    index = tl.load(layer + 2)
    place = at
    if index != 0:
        place = tl.load(index.to(tl.pointer_type(tl.int32)) + at, mask=kept, other=0).to(tl.int64)
    dense, element = tl.load(layer), tl.load(layer + 1)
    if element == 0:
        value = tl.load(dense.to(tl.pointer_type(tl.float16)) + place, mask=kept, other=0.0).to(tl.float32)
    elif element == 1:
        value = tl.load(dense.to(tl.pointer_type(tl.bfloat16)) + place, mask=kept, other=0.0).to(tl.float32)
    else:
        value = tl.load(dense.to(tl.pointer_type(tl.float32)) + place, mask=kept, other=0.0)
    out = tl.load(layer + 3).to(tl.pointer_type(tl.float32)) + at
    if tl.load(layer + 4) != 0:
        value = tl.fma(value, inverse, tl.load(out, mask=kept, other=0.0))
    else:
        value = value * inverse
    tl.store(out, value, mask=kept)


def gather(layers: Tensor, programs: int, inverse: float, size: int) -> None:
    """out[i] = dense[index[i]] * inverse of each layer, in float32, rounded once; or out[i] plus that.

    Args:
        layers: int64[n, COLUMNS], on the device: address of the dense gradient; 0, 1 or 2: float16, bfloat16
            or float32; address of its int32 index, 0: all of it in the order of memory; address of float32
            out; whether to add to it; kept; how many programs the layers before it take.
        programs: of all layers: ceil(kept / size) each.
        inverse: of the loss' scale.
        size: a power of two.
    """
    if programs:
        with on(layers.device):
            _gather[(programs,)](layers, len(layers), inverse, size, COLUMNS, enable_fp_fusion=False)
