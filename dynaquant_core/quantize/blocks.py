"""Optimizer moments in 8 or 4 bits: logarithmic codes with a scale for every 256 values (ours).

Guarantees, for float32 values x decoded as y.  In both codes zero stays zero, no sign changes, and what is
not signed (second moments) has y > 0 wherever x > 0.  In `EIGHT` bits:

* signed (first moments): |y - x| <= 5% of |x|, or y = 0, which happens only to values below 2^-15.7 of their
  block's largest magnitude;
* not signed: |y - x| <= 5% of x while the block's values span less than 2^31; 10% below 2^63, 20% below
  2^126, 43% below 2^253, a factor of 2.1 beyond; where steps are drawn a whole step (9.1% below 2^31), and
  right on average, so that a moment that is restored again and again goes where it should;
* values decoded as float32 code to themselves: a second round trip changes nothing.

In `FOUR` bits:

* signed: |y - x| <= 43% of |x|, or y = 0, which happens only to values below 2^-6.4 (1.2%) of their block's
  largest magnitude (finer steps that reach less far cost training more: what is lost is not noise);
* not signed: |y - x| <= 5% of x while the block's values span less than 2^1.7; 10% below 2^3.5, 20% below
  2^7, 43% below 2^14; in wider blocks what is below 2^-14 of the largest comes back as about 2^-14 of it.

The percentages hold for normal numbers; subnormal ones are rounded once more, to their grid.

A level is an eighth of an octave.  A block's scale is the level of its largest magnitude; a code counts steps
down from there, of 1, 2, 4, 8 or 16 levels: the smallest that spans the block, as far as `Grid` allows.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.arithmetic import plainly
from dynaquant_core.errors import CorruptFileError, StateMismatchError, UnsupportedStateError
from dynaquant_core.quantize import block_kernels as kernels
from dynaquant_core.quantize.flat import FLOATS, as_float32, flatten, host_view
from dynaquant_core.quantize.lattice import offsets
from dynaquant_core.threads import map_threads, slices

__all__ = ["BLOCK", "EIGHT", "FOUR", "Grid", "Steps", "decode", "encode", "nonzero_float32", "scale_count"]

#: Values that share a scale, and scales that make a thread worth its hand-over.
BLOCK, SLICE = 256, 1 << 11

#: Values that share a draw: as few as are worth the borders that follow from it.
DRAWN_TOGETHER = kernels.DRAWN_TOGETHER

#: Eighths of an octave: levels below 2^0 and in all, from the smallest subnormal to 2^128.
BELOW, LEVELS = 149 * 8, 149 * 8 + 128 * 8 + 1

#: A scale is level * 16 + 8 (where signed) + log2 of the step; the largest step.
LEVEL_UNIT, SIGNED_BIT, LARGEST_STEP = 16, 8, 4

#: Sixty-fourths of an octave: a mantissa's leading 7 bits give its fine level, one more past the split.
FINE_SHIFT = 16


class Steps(NamedTuple):
    """How far codes reach: magnitudes above zero, and log2 of the least and of the widest step in levels."""

    reach: int
    least: int
    most: int


class Grid(NamedTuple):
    """One code: where values have signs, and where they have none."""

    signed: Steps
    positive: Steps


EIGHT: Final = Grid(signed=Steps(127, 0, 0), positive=Steps(255, 0, LARGEST_STEP))
FOUR: Final = Grid(signed=Steps(7, 3, 3), positive=Steps(15, 0, 3))


class Fine(NamedTuple):
    """How levels, and what lies between them, are told from a mantissa.

    Attributes:
        first: int64[128], 64ths of an octave by a mantissa's leading 7 bits.
        split: uint32[128], the mantissa from which it is one more.
        borders: uint32[4, 1024, 8], by log2 of a step in levels and the 1024th of an octave at which one of
            them ends: the mantissas at which the steps of an octave begin; 2^23 for none.
        begins: uint32[8], the mantissas of an octave's levels, as decoded.
    """

    first: NDArray[np.int64]
    split: NDArray[np.uint32]
    borders: NDArray[np.uint32]
    begins: NDArray[np.uint32]


def fine_levels(up: float) -> Fine:
    """By log2 of the mantissa in parts of an octave, ``up`` of one added and rounded down.

    64ths are further apart than a cell is wide, so one comparison a cell is enough.
    """
    coarse, fine = (
        np.ceil((2.0 ** ((np.arange(1, count + 1) - up) / count) - 1.0) * 2**23).astype(np.int64)
        for count in (64, 1024)
    )
    first = np.searchsorted(coarse, np.arange(128) << FINE_SHIFT, side="right")
    following = np.append(coarse, 2**23)[first]
    borders = np.full((4, 1024, 8), 2**23)
    for step in range(4):
        width, count = 128 << step, 8 >> step
        borders[step, :width, :count] = fine[np.arange(width)[:, None] + width * np.arange(count)]
    begins = (2.0 ** (np.arange(8) / 8)).astype(np.float32).view(np.uint32) & np.uint32(0x7FFFFF)
    return Fine(first.astype(np.int64), following.astype(np.uint32), borders.astype(np.uint32), begins)


#: Rounded down for the nearest step, since the border between two steps is a fine level; to the nearest where
#: steps are drawn, since a step is one, too.
NEAREST, DRAWN = fine_levels(0.0), fine_levels(0.5)

#: Values of a draw.
DRAWS: Final = 4096


def fall_table() -> NDArray[np.uint16]:
    """How far below a step, in 1024ths of an octave, values are that fall to the next: uint16[5, `DRAWS`].

    At least 1.  By log2 of a step in levels, and by a draw, evenly from 0 on.  It is such that what comes
    back is right on average.
    """
    found = np.empty((LARGEST_STEP + 1, DRAWS), np.uint16)
    for step, row in enumerate(found):
        down = np.arange(128 << step) / 1024
        chances = (1 - 2.0**-down) / (1 - 2.0 ** -(2.0**step / 8))
        row[:] = np.searchsorted(DRAWS * chances, np.arange(DRAWS) + 0.5, side="right")
    return found


FALLS, NO_DRAWS = fall_table(), np.empty(0, np.uint16)


def draws_of(key: int, size: int) -> NDArray[np.uint16]:
    """The draws of ``size`` values, one for each `DRAWN_TOGETHER`."""
    return ((offsets(key, -(-size // DRAWN_TOGETHER)) + np.float32(0.5)) * DRAWS).astype(np.uint16)


def scale_count(size: int) -> int:
    """Number of scales of ``size`` values."""
    return -(-size // BLOCK)


def encode(
    tensor: Tensor, signed: bool, grid: Grid = EIGHT, *, key: int | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.int16]]:
    """Codes a moment in 8 or 4 bits a value, a byte each.

    Args:
        tensor: finite floating tensor of any shape and device; float64 is rounded to float32, but not to 0.
        signed: False for values that are never negative (second moments).
        grid: `EIGHT` or `FOUR`.
        key: of `quantize.lattice.offset_key`: values go up or down by chance, right on average, 32 by one
            draw; None: to the nearest step.

    Returns:
        (codes uint8[n], scales int16[ceil(n / 256)]).  Codes ascend with the value: 0 is zero where not
        signed, 128 (in 4 bits 8) where signed.

    Raises:
        UnsupportedStateError: the tensor is not floating, a value is not finite in float32, or negative
            where not signed.

    Example:
        >>> codes, scales = encode(torch.tensor([0.0, 1e-8, 1.0]), signed=False)
        >>> out = torch.empty(3)
        >>> decode(codes, scales, out)
        >>> out[0].item(), 0.95e-8 < out[1].item() < 1.05e-8
        (0.0, True)
    """
    array = host_view(flatten(tensor).cpu())
    steps = grid.signed if signed else grid.positive
    codes = np.empty(array.size, dtype=np.uint8)
    scales = np.empty(scale_count(array.size), dtype=np.int16)
    fine, draws = (NEAREST, NO_DRAWS) if key is None else (DRAWN, draws_of(key, array.size))

    def work(part: slice) -> int:
        bad = 0
        for start in range(part.start, part.stop, BLOCK):
            blocks = slice(start, min(start + BLOCK, part.stop))
            values = slice(blocks.start * BLOCK, blocks.stop * BLOCK)
            drawn = slice(values.start // DRAWN_TOGETHER, values.stop // DRAWN_TOGETHER)
            bits = nonzero_float32(array[values]).view(np.uint32)
            rules = (*fine, signed, *steps, draws[drawn], FALLS)
            bad += kernels.encode_blocks(bits, *rules, codes[values], scales[blocks])
        return bad

    bad = sum(map_threads(work, slices(scales.size, SLICE)))
    if bad:
        raise UnsupportedStateError(
            f"moments: {bad} of {array.size} values are not finite{'' if signed else ', or negative'} "
            f"in a tensor of shape {tuple(tensor.shape)}; keep it exact."
        )
    return codes, scales


def decode(codes: NDArray[np.uint8], scales: NDArray[np.int16], out: Tensor, grid: Grid = EIGHT) -> None:
    """Decodes what `encode` returned into a tensor, in its dtype.

    Args:
        codes: uint8[n].
        scales: int16[ceil(n / 256)].
        out: floating tensor of n elements, any shape and device; in a narrower dtype what is not zero becomes
            at least its smallest and at most its largest finite number.
        grid: that of `encode`.

    Raises:
        CorruptFileError: scales do not fit the codes, or are none that `encode` writes.
        StateMismatchError: ``out`` has another number of elements, or is not floating.
    """
    if out.numel() != codes.size or out.dtype not in FLOATS:
        raise StateMismatchError(
            f"moments: {codes.size} codes cannot be decoded into a tensor of {out.dtype} and shape "
            f"{tuple(out.shape)}; expected as many floating elements."
        )
    refuse_bad_scales(scales, codes.size)
    target = out.detach()
    direct = target.device.type == "cpu" and target.is_contiguous()
    flat = (target if direct else torch.empty(target.shape, dtype=target.dtype, device="cpu")).view(-1)
    width = {2: np.uint16, 4: np.uint32, 8: np.uint64}[flat.element_size()]
    reaches = grid.signed.reach, grid.positive.reach
    levels, decoded = host_view(level_table(flat.dtype)).view(width), host_view(flat).view(width)

    def work(part: slice) -> None:
        values = slice(part.start * BLOCK, part.stop * BLOCK)
        kernels.decode_blocks(codes[values], scales[part], levels, *reaches, decoded[values])

    map_threads(work, slices(scales.size, SLICE))
    if not direct:
        target.copy_(flat.view(target.shape))


@cache
@plainly
def level_table(dtype: torch.dtype) -> Tensor:
    """Value of every level, then of every level negated, then zero: [2 * LEVELS + 1] of the dtype."""
    powers = torch.from_numpy(2.0 ** ((np.arange(LEVELS) - BELOW) / 8))
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # the smallest subnormal
    low = max(smallest, 2.0**-149)
    high = min(torch.finfo(dtype).max, torch.finfo(torch.float32).max)
    values = powers.clamp(low, high)
    return torch.cat((values, -values, torch.zeros_like(values[:1]))).to(dtype)


def nonzero_float32(part: NDArray[np.generic]) -> NDArray[np.float32]:
    """Values as float32; what float64 holds and float32 would round to zero is its smallest number."""
    with np.errstate(over="ignore"):
        narrow = as_float32(part)
    if part.dtype == np.float64:
        lost = (narrow == 0) & (part != 0)
        narrow[lost] = np.copysign(np.float32(2.0**-149), part[lost])
    return narrow


def refuse_bad_scales(scales: NDArray[np.int16], size: int) -> None:
    """Raises CorruptFileError unless the scales fit the codes and the table of levels."""
    if scales.dtype != np.int16 or scales.shape != (scale_count(size),):
        raise CorruptFileError(
            f"moments: expected {scale_count(size)} scales for {size} codes, got {scales.dtype}"
            f"{list(scales.shape)}."
        )
    top, step = scales >> 4, scales & 7
    if size and (top.min() < -BELOW or top.max() >= LEVELS - BELOW or step.max() > LARGEST_STEP):
        raise CorruptFileError("moments: a scale is none that an encoder writes.")
