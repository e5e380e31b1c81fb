"""Compiled loops of the dithered lattice: weights to symbols, symbols to values, and a tensor's moments.

Serial, without allocation, never raising: wrappers in `cpu_path` and `steps` validate and allocate.  Every
operation is one IEEE operation in float32, each rounded on its own: where a product meets a sum, it is exact
or comes last, so that a compiler that fuses them changes no bit.  Twins: tests/reference/lattice_twins.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel
from dynaquant_core.quantize.lattice.offset_kernels import centred, fill_halves, offset_at

__all__ = ["add_moments", "find_escapes", "place", "place_escapes", "quantise"]

Array = NDArray[Any]

ZERO, TWO = np.uint64(0), np.uint64(2)

#: A symbol is k + MIDDLE where |k| < MIDDLE, else ESCAPE; an escaped k is an int32.
MIDDLE, ESCAPE = np.float32(128), np.float32(0)
INT32 = np.float32(2.0**31)


@kernel
def quantise(
    key: Any, start: Any, words: Array, halves: Array, values: Array, step: Any, symbols: Array
) -> int:
    """Writes the symbol of each of ``values`` float32[n] to ``symbols`` uint8[n]; returns how many escape.

    ``start`` uint64 is the index of the first value in its tensor; scratch as in `fill_offsets`.  A value
    that is not finite escapes.
    """
    tile = np.uint64(words.size - 1) << TWO
    escaped = 0
    for low in range(ZERO, np.uint64(values.size), tile):
        part, out = values[low : low + tile], symbols[low : low + tile]
        skip = fill_halves(key, start + low, np.uint64(part.size), words)
        numbers = halves[skip : skip + np.uint64(part.size)]
        for i in range(np.uint64(part.size)):
            k = np.rint(np.divide(part[i], step) - centred(numbers[i]))
            symbol = k + MIDDLE if abs(k) < MIDDLE else ESCAPE
            out[i] = np.uint8(np.int32(symbol))
        for i in range(np.uint64(part.size)):
            escaped += out[i] == 0
    return escaped


@kernel
def find_escapes(key: Any, start: Any, values: Array, step: Any, positions: Array, escapes: Array) -> bool:
    """Writes k of the values at ``positions`` int64[m] to ``escapes`` int32[m]; False: one does not fit."""
    for i in range(positions.size):
        index = np.uint64(positions[i])
        k = np.rint(np.divide(values[index], step) - offset_at(key, start + index))
        if not abs(k) < INT32:  # NaN compares false
            return False
        escapes[i] = np.int32(k)
    return True


@kernel
def place(
    key: Any,
    start: Any,
    words: Array,
    halves: Array,
    symbols: Array,
    step: Any,
    least: Any,
    most: Any,
    out: Array,
) -> None:
    """Decodes ``symbols`` uint8[n] into ``out`` float32[n], nothing below ``least`` or above ``most``.

    An escape is decoded as k = -128 and left to `place_escapes`.  k + u is exact: 7 and 17 bits.
    """
    tile = np.uint64(words.size - 1) << TWO
    for low in range(ZERO, np.uint64(symbols.size), tile):
        part, decoded = symbols[low : low + tile], out[low : low + tile]
        skip = fill_halves(key, start + low, np.uint64(part.size), words)
        numbers = halves[skip : skip + np.uint64(part.size)]
        for i in range(np.uint64(part.size)):
            value = ((np.float32(part[i]) - MIDDLE) + centred(numbers[i])) * step
            decoded[i] = min(max(value, least), most)


@kernel
def place_escapes(
    key: Any, start: Any, positions: Array, escapes: Array, step: Any, least: Any, most: Any, out: Array
) -> None:
    """Decodes ``escapes`` int32[m] into ``out`` float32[n] at ``positions`` int64[m]."""
    for i in range(positions.size):
        index = np.uint64(positions[i])
        value = (np.float32(escapes[i]) + offset_at(key, start + index)) * step
        out[index] = min(max(value, least), most)


@kernel
def add_moments(values: Array, pivot: Any, sums: Array, squares: Array) -> None:
    """Adds d and d^2, d = value - pivot in float64, of value i to lane i mod m of two float64[m].

    Lanes, because a lone sum would wait for its own last addition.
    """
    lanes = np.uint64(sums.size)
    for low in range(ZERO, np.uint64(values.size), lanes):
        part = values[low : low + lanes]
        for i in range(np.uint64(part.size)):
            distance = np.float64(part[i]) - pivot
            sums[i] += distance
            squares[i] += distance * distance
