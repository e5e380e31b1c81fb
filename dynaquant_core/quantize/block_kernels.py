"""Compiled loops of the 8-bit and 4-bit codes of moments; twins in tests/reference/quantize_twins.py.

Only integers: the level of a number comes from its bits and a table, so that every platform writes the same
codes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = ["decode_blocks", "encode_blocks"]

Array = NDArray[Any]
inline = numba.njit(nogil=True, inline="always")

BLOCK = 256
ZERO = -(1 << 40)  # below the level of any number


@inline
def fine_level(bits: Any, first: Array, split: Array) -> Any:
    """log2 of a positive float's magnitude in 64ths of an octave, rounded; `ZERO` for zero."""
    magnitude = np.int64(bits) & 0x7FFFFFFF
    if magnitude == 0:
        return ZERO
    exponent, mantissa = magnitude >> np.int64(23), magnitude & 0x7FFFFF
    if exponent == 0:
        exponent = np.int64(1)  # a subnormal number: shift until the leading bit is in place
        while mantissa < 0x800000:
            mantissa <<= 1
            exponent -= 1
        mantissa &= 0x7FFFFF
    cell = mantissa >> 16
    return 64 * (exponent - 127) + first[cell] + np.int64(mantissa >= split[cell])


@kernel
def encode_blocks(
    bits: Array,
    first: Array,
    split: Array,
    signed: bool,
    reach: int,
    least: int,
    most: int,
    scratch: Array,
    codes: Array,
    scales: Array,
) -> int:
    """Codes ``bits`` uint32[n] block by block; returns how many values cannot be coded.

    ``first`` int64[128] and ``split`` uint32[128] as in `blocks.fine_levels`; ``reach``, ``least`` and
    ``most`` as in `blocks.Steps`; ``scratch`` int64[256]; ``codes`` uint8[n]; ``scales`` int16, one a block.
    """
    bad = 0
    for block in range(scales.size):
        start = block * BLOCK
        size = min(BLOCK, bits.size - start)
        highest, lowest = ZERO, -ZERO
        for i in range(size):
            word = bits[start + i]
            level = fine_level(word, first, split)
            scratch[i] = level
            if level != ZERO:
                highest, lowest = max(highest, level), min(lowest, level)
                bad += (word & 0x7F800000) == 0x7F800000 or (not signed and word >> 31 == 1)
        if highest == ZERO:
            highest, lowest = 0, 0
        top = (highest + 4) >> 3
        step = least
        while step < most and ((top * 8 - lowest + (4 << step)) >> (3 + step)) > reach - 1:
            step += 1
        scales[block] = top * 16 + (8 if signed else 0) + step
        for i in range(size):
            code = 0
            if scratch[i] != ZERO:
                down = (top * 8 - scratch[i] + (4 << step)) >> (3 + step)
                code = max(0 if signed else 1, reach - down)
            if signed:
                code = reach + 1 - code if bits[start + i] >> 31 == 1 else reach + 1 + code
            codes[start + i] = code
    return bad


@kernel
def decode_blocks(
    codes: Array, scales: Array, levels: Array, reach_signed: int, reach_positive: int, out: Array
) -> None:
    """Decodes ``codes`` uint8[n] with ``scales`` into ``out`` [n]; ``levels`` as `blocks.level_table`."""
    count = (levels.size - 1) // 2
    for block in range(scales.size):
        scale = np.int64(scales[block])
        top = (scale >> 4) + 1192
        signed, step = (scale & 8) != 0, scale & 7
        reach = np.int64(reach_signed if signed else reach_positive)
        stop = min(codes.size, (block + 1) * BLOCK)
        for i in range(block * BLOCK, stop):
            code = np.int64(codes[i])
            negative = signed and code < reach + 1
            if signed:
                code = abs(code - (reach + 1))
            level = top - ((reach - code) << step)
            level = min(max(level, np.int64(0)), np.int64(count - 1))
            if negative:
                level += count
            out[i] = levels[2 * count] if code == 0 else levels[level]
