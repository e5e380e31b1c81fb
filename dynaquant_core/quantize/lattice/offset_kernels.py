"""Compiled loops of the offsets: a counter-based generator, two multiplications for four numbers.

``word`` and ``centred`` are inlined into the kernels of the lattice, which never hold offsets for more than a
tile.  Twins in tests/reference/lattice_twins.py.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = ["centred", "fill_halves", "fill_offsets", "offset_at"]

Array = NDArray[Any]
inline = numba.njit(nogil=True, inline="always")

#: SplitMix64: the increment of its counter and the two factors of its finaliser.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)

ONE, TWO, THREE, SIXTEEN = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(16)
SHIFT_30, SHIFT_27, SHIFT_31 = np.uint64(30), np.uint64(27), np.uint64(31)
LOW_16 = np.uint64(0xFFFF)

#: (2 r + 1 - 65536) / 131072 = r * UNIT + LOWEST; both operations are exact in float32 for any 16-bit r.
UNIT, LOWEST = np.float32(2.0**-16), np.float32(2.0**-17 - 0.5)


@inline
def word(key: Any, block: Any) -> Any:
    """uint64 with the numbers of the indices 4 * block to 4 * block + 3, the lowest 16 bits first."""
    z = key + (block + ONE) * GOLDEN
    z = (z ^ (z >> SHIFT_30)) * FIRST
    z = (z ^ (z >> SHIFT_27)) * SECOND
    return z ^ (z >> SHIFT_31)


@inline
def centred(half: Any) -> Any:
    """float32 offset of a 16-bit number."""
    return np.float32(half) * UNIT + LOWEST


@inline
def offset_at(key: Any, index: Any) -> Any:
    """float32 offset of one uint64 index; `fill_halves` is far cheaper for a run of them."""
    return centred((word(key, index >> TWO) >> ((index & THREE) * SIXTEEN)) & LOW_16)


@inline
def fill_halves(key: Any, start: Any, size: Any, words: Array) -> Any:
    """Fills ``words`` uint64 with the numbers of the indices ``start`` to ``start + size``; all unsigned.

    Returns where the first of them is in ``words`` seen as uint16, 0 to 3; ``words`` has room for
    (size + 6) / 4 words.
    """
    skip, first = start & THREE, start >> TWO
    for i in range((skip + size + THREE) >> TWO):
        words[i] = word(key, first + i)
    return skip


@kernel
def fill_offsets(key: Any, start: Any, words: Array, halves: Array, out: Array) -> None:
    """Writes the offsets of the indices from uint64 ``start`` on to ``out`` float32[n].

    ``words`` uint64[m] is scratch, ``halves`` uint16[4 m] the same memory; m is at least 2.
    """
    tile = np.uint64(words.size - 1) << TWO
    for low in range(np.uint64(0), np.uint64(out.size), tile):
        part = out[low : low + tile]
        skip = fill_halves(key, start + low, np.uint64(part.size), words)
        numbers = halves[skip : skip + np.uint64(part.size)]
        for i in range(np.uint64(part.size)):
            part[i] = centred(numbers[i])
