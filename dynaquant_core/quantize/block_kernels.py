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

BLOCK, DRAWN_TOGETHER = 256, 32
MAGNITUDE, MANTISSA, INFINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7FFFFF), np.uint32(0x7F800000)
NORMAL, OCTAVE, ONE = np.uint32(0x800000), np.uint32(23), np.uint32(1)
ZERO = -(1 << 40)  # below the level of any number


@inline
def fine_level(bits: Any, first: Array, split: Array) -> Any:
    """log2 of a positive float's magnitude in 64ths of an octave, as the tables say; `ZERO` for zero."""
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
def span(bits: Array) -> Any:
    """(largest magnitude, smallest magnitude that is not zero less one, all bits or'ed) of a block, uint32.

    A zero less one wraps around to the largest number; a block of zeros has that as its smallest.
    """
    largest, smallest, seen = np.uint32(0), np.uint32(0xFFFFFFFF), np.uint32(0)
    for i in range(np.uint64(bits.size)):
        magnitude = np.uint32(bits[i] & MAGNITUDE)
        largest = max(largest, magnitude)
        smallest = min(smallest, np.uint32(magnitude - ONE))
        seen = np.uint32(seen | bits[i])
    return largest, smallest, seen


@kernel
def code_part(
    bits: Array, start: Any, stop: Any, bounds: Array, octave: Any, away: Any, middle: Any, codes: Array
) -> None:
    """Codes normal numbers and zeros from one place to another, signed where ``middle`` is not 0.

    A code is ``octave`` steps for each octave and one for each of ``bounds`` uint32[8] below the mantissa (a
    vector instruction each), plus ``away``; all int32.
    """
    b0, b1, b2, b3 = bounds[0], bounds[1], bounds[2], bounds[3]
    b4, b5, b6, b7 = bounds[4], bounds[5], bounds[6], bounds[7]
    least = np.int32(0) if middle else np.int32(1)
    for i in range(np.uint64(start), np.uint64(stop)):
        word = bits[i]
        magnitude, mantissa = np.uint32(word & MAGNITUDE), np.uint32(word & MANTISSA)
        passed = np.int32(mantissa >= b0) + np.int32(mantissa >= b1) + np.int32(mantissa >= b2)
        passed += np.int32(mantissa >= b3) + np.int32(mantissa >= b4) + np.int32(mantissa >= b5)
        passed += np.int32(mantissa >= b6) + np.int32(mantissa >= b7)
        code = max(np.int32(np.int32(magnitude >> OCTAVE) * octave + passed + away), least)
        code = code if magnitude != 0 else np.int32(0)
        codes[i] = np.uint8(middle - code if word > MAGNITUDE else middle + code)


@inline
def above(bits: Any, begins: Array) -> Any:
    """The lowest level that a normal number is not above."""
    level, mantissa = 8 * (np.int64(bits >> OCTAVE) - 127), np.uint32(bits & MANTISSA)
    for j in range(8):
        level += mantissa > begins[j]
    return level


@inline
def spanning(depth: Any, drawn: bool, reach: int, least: int, most: int) -> Any:
    """log2 of the smallest step, in levels, whose codes reach so many fine levels down; drawn, one more."""
    step = least
    while step < most and (depth + ((8 if drawn else 4) << step) - 1) >> (3 + step) > reach - 1:
        step += 1
    return step


@kernel
def encode_blocks(
    bits: Array,
    first: Array,
    split: Array,
    borders: Array,
    begins: Array,
    signed: bool,
    reach: int,
    least: int,
    most: int,
    draws: Array,
    falls: Array,
    codes: Array,
    scales: Array,
) -> int:
    """Codes ``bits`` uint32[n] block by block; returns how many values cannot be coded.

    ``first`` int64[128], ``split`` uint32[128], ``borders`` uint32[4, 1024, 8] and ``begins`` uint32[8] as in
    `blocks.Fine`; ``reach``, ``least`` and ``most`` as in `blocks.Steps`; ``draws`` uint16, one for each 32
    values, or none: then each goes to the nearest step; ``falls`` uint16[5, 4096] as in `blocks.fall_table`;
    ``codes`` uint8[n]; ``scales`` int16, one a block.
    """
    bad = 0
    drawn = draws.size > 0
    middle = reach + 1 if signed else 0
    for block in range(scales.size):
        start, stop = block * BLOCK, min((block + 1) * BLOCK, bits.size)
        largest, smallest, seen = span(bits[start:stop])
        if largest >= INFINITE or (not signed and seen > MAGNITUDE):
            for i in range(start, stop):
                magnitude = bits[i] & MAGNITUDE
                bad += magnitude >= INFINITE or (not signed and magnitude != 0 and bits[i] > MAGNITUDE)
        lowest, top = 0, 0
        if largest != 0:
            lowest = fine_level(np.uint32(smallest + ONE), first, split)
            top = (fine_level(largest, first, split) + (7 if drawn else 4)) >> 3
            if drawn and largest >= NORMAL:  # the others are too coarse for it to matter
                top = above(largest, begins)
        step = spanning(top * 8 - lowest, drawn, reach, least, most)
        scales[block] = top * 16 + (8 if signed else 0) + step
        fast = step <= 3 and smallest + ONE >= NORMAL
        length = DRAWN_TOGETHER if drawn else BLOCK
        for at in range(start, stop, length):
            end = min(at + length, stop)
            # What lies so far below a step, in 1024ths of an octave, or further, falls to the next.
            fall = np.int64(falls[step, draws[at // DRAWN_TOGETHER]]) if drawn else np.int64((64 << step) + 1)
            if fast:
                half = top * 128 + (128 << step) - fall
                away = np.int32(reach - (half >> (7 + step)) - 127 * (8 >> step))
                bounds = borders[step, half & ((128 << step) - 1)]
                code_part(bits, at, end, bounds, np.int32(8 >> step), away, np.int32(middle), codes)
                continue
            half = top * 8 + (8 << step) - max(1, (fall + 15 - 8 * drawn) >> 4)
            for i in range(at, end):
                level, code = fine_level(bits[i], first, split), 0
                if level != ZERO:
                    code = max(0 if signed else 1, reach - ((half - level) >> (3 + step)))
                codes[i] = middle - code if signed and bits[i] > MAGNITUDE else middle + code
    return bad


@kernel
def decode_blocks(
    codes: Array, scales: Array, levels: Array, reach_signed: int, reach_positive: int, out: Array
) -> None:
    """Decodes ``codes`` uint8[n] with ``scales`` into ``out`` [n]; ``levels`` as `blocks.level_table`.

    Signs cannot be foreseen, so the level is chosen without a branch.
    """
    count = (levels.size - 1) // 2
    least, last, nothing = np.int64(0), np.int64(count - 1), np.uint64(2 * count)
    for block in range(np.uint64(scales.size)):
        scale = np.int64(scales[block])
        top, step = (scale >> 4) + 1192, scale & 7
        start = block * np.uint64(BLOCK)
        part, into = codes[start : start + np.uint64(BLOCK)], out[start : start + np.uint64(BLOCK)]
        if scale & 8:
            reach = np.int64(reach_signed)
            for i in range(np.uint64(part.size)):
                away = np.int64(part[i]) - (reach + 1)
                level = min(max(top - ((reach - abs(away)) << step), least), last)
                at = np.uint64(level + (count if away < 0 else 0))
                into[i] = levels[nothing if away == 0 else at]
        else:
            reach = np.int64(reach_positive)
            for i in range(np.uint64(part.size)):
                level = min(max(top - ((reach - np.int64(part[i])) << step), least), last)
                into[i] = levels[nothing if part[i] == 0 else np.uint64(level)]
