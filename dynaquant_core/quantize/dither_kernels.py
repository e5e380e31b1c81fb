"""Compiled loops of dithered codes.  Twins in plain NumPy: tests/reference/quantize_twins.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel
from dynaquant_core.quantize.lattice.offset_kernels import fill_halves

__all__ = ["add_places", "settle"]

Array = NDArray[Any]

HALF, ZERO, ONE, TWO = np.float32(0.5), np.uint64(0), np.uint64(1), np.uint64(2)


@kernel
def settle(codes: Array, weights: Array, offsets: Array, values: Array, gaps: Array, names: Array) -> None:
    """Turns, in place, a level at or below each weight into the code of one of the two around it.

    ``codes`` uint8[n]: 1 (protected, stays), or 2 + the index of a level at or below the weight, at most
    l - 2; ``weights`` and ``offsets`` float32[n]; ``values`` float32[l], ascending, l at least 2; ``gaps``
    float32[l - 1] between them; ``names`` uint8[l], code of each.  One rounding an operation, none of them a
    product that meets a sum, so that every compiler and device agrees.
    """
    last = np.uint64(values.size) - TWO
    for i in range(np.uint64(codes.size)):
        if codes[i] != 1:
            weight = weights[i]
            low = np.uint64(codes[i]) - TWO
            while low < last and weight >= values[low + ONE]:
                low += ONE
            share = (offsets[i] + HALF) * gaps[low]
            codes[i] = names[low + np.uint64(weight - values[low] > share)]


@kernel
def add_places(
    key: Any, start: Any, words: Array, halves: Array, codes: Array, places: Array, count: Any, out: Array
) -> None:
    """Writes ``codes`` uint8[n] times ``count`` plus the place of each weight's draw to ``out`` uint16[n].

    ``places`` uint8[65536], place of each 16-bit number, below ``count``; the rest as in `fill_offsets`.
    """
    tile = np.uint64(words.size - 1) << TWO
    for low in range(ZERO, np.uint64(codes.size), tile):
        part, found = codes[low : low + tile], out[low : low + tile]
        skip = fill_halves(key, start + low, np.uint64(part.size), words)
        numbers = halves[skip : skip + np.uint64(part.size)]
        for i in range(np.uint64(part.size)):
            found[i] = np.uint16(part[i]) * count + np.uint16(places[np.uint64(numbers[i])])
