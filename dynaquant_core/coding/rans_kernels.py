"""Kernels that encode symbols with rANS, each under the table of its context symbol.

States live in [2**16, 2**32), probabilities are multiples of 2**-15, and a state gives or takes one 16-bit
word at a time.  Four states take turns so that their latencies overlap; symbols after the last group of
four belong to state 0, and a short stream has state 0 only (``bulk`` = 0).  The encoder runs backwards.

Index arithmetic is unsigned throughout: Numba would add a wrap-around test to signed indices and would turn
a mix of both into floats.  Helpers take scalars only: an array argument costs two atomic reference counts a
call, which is why the four turns are written out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynaquant_core.coding.codec import Array
from dynaquant_core.jit import kernel

__all__ = ["encode", "fill_widths"]

_HALF = np.uint64(0xFFFF)
_MASK = np.uint64((1 << 15) - 1)
_16 = np.uint64(16)
_17 = np.uint64(17)
_31 = np.uint64(31)
_46 = np.uint64(46)
_SCALE = np.uint64(1 << 15)
_ONE = np.uint64(1 << 46)
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)


@kernel
def fill_widths(starts: Array, rows: int, levels: int, packed: Array, inverse: Array) -> None:
    """Encoder's view of starts[rows * (levels + 1)].

    A state below width * 2**17 is divided by width as (x + round_down) * inverse >> 46.  Rounding the
    inverse to the nearer side makes that exact: its error, at most width / 2, times x stays within 2**46.

    ``packed`` gets round_down << 31 | start << 16 | width, ``inverse`` the rounded 2**46 / width.
    """
    for row in range(rows):
        for symbol in range(levels):
            start = np.uint64(starts[row * (levels + 1) + symbol])
            width = np.uint64(starts[row * (levels + 1) + symbol + 1]) - start
            rest = _ONE % max(width, _1)
            down = _1 if rest > _0 and rest <= width >> _1 else _0
            up = _1 if rest > _0 and down == _0 else _0
            packed[row * levels + symbol] = (down << _31) | (start << _16) | width
            inverse[row * levels + symbol] = _ONE // max(width, _1) + up


@kernel
def _push(x: Any, entry: Any, inverse: Any) -> Any:
    """The state after it took ``entry``: quotient * 2**15 + remainder + start."""
    quotient = ((x + (entry >> _31)) * inverse) >> _46
    return x + ((entry >> _16) & _MASK) + quotient * (_SCALE - (entry & _HALF))


@kernel
def encode(
    values: Array,
    contexts: Array,
    levels: Any,
    packed: Array,
    inverse: Array,
    bulk: Any,
    lanes: Array,
    words: Array,
) -> np.int64:
    """Encodes ``values`` backwards into the end of ``words``.

    Args:
        values: uint8 or uint16[n], all below ``levels``.
        contexts: uint8 or uint16[n], the row of each symbol's table.
        levels: symbols a table.
        packed: uint32[rows * levels], see `fill_widths`.
        inverse: uint64[rows * levels], see `fill_widths`.
        bulk: how many symbols the four states share; a multiple of four.
        lanes: uint64[4], the states; changed.
        words: uint16[capacity].

    Returns:
        Where the first word lies, or -1 if the capacity was too small.
    """
    top = np.uint64(words.size)
    x0, x1, x2, x3 = lanes[0], lanes[1], lanes[2], lanes[3]
    i = np.uint64(values.size)
    bulk = np.uint64(bulk)
    levels = np.uint64(levels)
    while i > bulk:
        i -= _1
        if top < _4:
            return np.int64(-1)
        at = np.uint64(contexts[i]) * levels + np.uint64(values[i])
        entry = np.uint64(packed[at])
        words[top - _1] = x0 & _HALF
        spill = x0 >= (entry & _HALF) << _17
        top -= np.uint64(spill)
        x0 = x0 >> _16 if spill else x0
        x0 = _push(x0, entry, inverse[at])
    while i > _0:
        i -= _4
        if top < _4:
            return np.int64(-1)
        at = np.uint64(contexts[i + _3]) * levels + np.uint64(values[i + _3])
        entry = np.uint64(packed[at])
        words[top - _1] = x3 & _HALF
        spill = x3 >= (entry & _HALF) << _17
        top -= np.uint64(spill)
        x3 = x3 >> _16 if spill else x3
        x3 = _push(x3, entry, inverse[at])
        at = np.uint64(contexts[i + _2]) * levels + np.uint64(values[i + _2])
        entry = np.uint64(packed[at])
        words[top - _1] = x2 & _HALF
        spill = x2 >= (entry & _HALF) << _17
        top -= np.uint64(spill)
        x2 = x2 >> _16 if spill else x2
        x2 = _push(x2, entry, inverse[at])
        at = np.uint64(contexts[i + _1]) * levels + np.uint64(values[i + _1])
        entry = np.uint64(packed[at])
        words[top - _1] = x1 & _HALF
        spill = x1 >= (entry & _HALF) << _17
        top -= np.uint64(spill)
        x1 = x1 >> _16 if spill else x1
        x1 = _push(x1, entry, inverse[at])
        at = np.uint64(contexts[i]) * levels + np.uint64(values[i])
        entry = np.uint64(packed[at])
        words[top - _1] = x0 & _HALF
        spill = x0 >= (entry & _HALF) << _17
        top -= np.uint64(spill)
        x0 = x0 >> _16 if spill else x0
        x0 = _push(x0, entry, inverse[at])
    lanes[0], lanes[1], lanes[2], lanes[3] = x0, x1, x2, x3
    return np.int64(top)
