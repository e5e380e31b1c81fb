"""Kernels that decode `coding.flags`; its streams are written by `rans_kernels.encode`.

Most symbols are 0, so that one is tried first; a branch that is seldom taken costs less than a search that
always is.  The turns are written out for the reason given in `rans_decode_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynaquant_core.coding.codec import Array
from dynaquant_core.jit import kernel

__all__ = ["add_flags", "decode_flags", "fill_intervals"]

_LOW = np.uint64(1 << 16)
_MASK = np.uint64((1 << 15) - 1)
_ROW = np.uint64(17)
_15 = np.uint64(15)
_16 = np.uint64(16)
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)
_8 = np.uint64(8)
_SCALE = np.int64(1 << 15)


@kernel
def add_flags(joint: Array, flags: Array, held: Array) -> None:
    """Counts the flags by class: how many there are, and how many of them are set.

    Args:
        joint: int64[from 1 to 256 contexts, from 1 to 16 symbols].
        flags: int64[4], added to: those that are set.
        held: int64[4], added to: all.
    """
    for context in range(joint.shape[0]):
        for symbol in range(joint.shape[1]):
            count = joint[context, symbol]
            for flag in range(4):
                of = np.uint64((context >> (2 * flag)) & 3)
                held[of] += count
                flags[of] += count * ((symbol >> flag) & 1)


@kernel
def fill_intervals(chances: Array, starts: Array) -> None:
    """Intervals of four independent flags: a symbol's width is the product of its flags' chances, at least 1.

    Whatever is left of 2^15 goes to the widest, the first of equals.

    Args:
        chances: int64[4], of a flag of each class, above 0 and below 2^15.
        starts: uint16[256, 17], written; integers only, so that every machine gets the same.
    """
    for context in range(256):
        starts[context, 0] = 0
        total, most, widest = np.int64(0), np.int64(0), 0
        for symbol in range(16):
            width = np.int64(1)
            for flag in range(4):
                chance = chances[(context >> (2 * flag)) & 3]
                width *= chance if (symbol >> flag) & 1 else _SCALE - chance
            width = max(width >> 45, np.int64(1))
            total += width
            starts[context, symbol + 1] = total
            if width > most:
                most, widest = width, symbol
        for symbol in range(widest, 16):
            starts[context, symbol + 1] += _SCALE - total


@kernel
def decode_flags(  # noqa: C901 - the turns are written out
    out: Array,
    contexts: Array,
    starts: Array,
    bulk: Any,
    lanes: Array,
    words: Array,
    position: int,
    limit: int,
) -> np.int64:
    """Decodes symbols below 16 into ``out``.

    Args:
        out: uint8 or uint16[n], filled.
        contexts: uint8 or uint16[n], below 256.
        starts: uint16[256 * 17], where intervals begin, from 0 to 2^15 in each context.
        bulk: how many symbols the four states share; a multiple of four.
        lanes: uint64[4], the states; changed.
        words: uint16[limit + 4]; the last four are padding, so a group may read past a hostile end.
        position: the first word to read.
        limit: how many words there are.

    Returns:
        The position after the last word read; above ``limit`` if the words ran out.
    """
    x0, x1, x2, x3 = lanes[0], lanes[1], lanes[2], lanes[3]
    i, at, end = _0, np.uint64(position), np.uint64(limit)
    bulk = np.uint64(bulk)
    while i < bulk and at <= end:
        row = np.uint64(contexts[i]) * _ROW
        slot = x0 & _MASK
        width = np.uint64(starts[row + _1])
        symbol = _0
        if slot >= width:
            symbol = _8 if slot >= np.uint64(starts[row + _8]) else _0
            symbol += _4 if slot >= np.uint64(starts[row + symbol + _4]) else _0
            symbol += _2 if slot >= np.uint64(starts[row + symbol + _2]) else _0
            symbol += _1 if slot >= np.uint64(starts[row + symbol + _1]) else _0
            start = np.uint64(starts[row + symbol])
            width = np.uint64(starts[row + symbol + _1]) - start
            slot -= start
        out[i] = symbol
        x0 = width * (x0 >> _15) + slot
        if x0 < _LOW:
            x0 = (x0 << _16) | np.uint64(words[at])
            at += _1
        row = np.uint64(contexts[i + _1]) * _ROW
        slot = x1 & _MASK
        width = np.uint64(starts[row + _1])
        symbol = _0
        if slot >= width:
            symbol = _8 if slot >= np.uint64(starts[row + _8]) else _0
            symbol += _4 if slot >= np.uint64(starts[row + symbol + _4]) else _0
            symbol += _2 if slot >= np.uint64(starts[row + symbol + _2]) else _0
            symbol += _1 if slot >= np.uint64(starts[row + symbol + _1]) else _0
            start = np.uint64(starts[row + symbol])
            width = np.uint64(starts[row + symbol + _1]) - start
            slot -= start
        out[i + _1] = symbol
        x1 = width * (x1 >> _15) + slot
        if x1 < _LOW:
            x1 = (x1 << _16) | np.uint64(words[at])
            at += _1
        row = np.uint64(contexts[i + _2]) * _ROW
        slot = x2 & _MASK
        width = np.uint64(starts[row + _1])
        symbol = _0
        if slot >= width:
            symbol = _8 if slot >= np.uint64(starts[row + _8]) else _0
            symbol += _4 if slot >= np.uint64(starts[row + symbol + _4]) else _0
            symbol += _2 if slot >= np.uint64(starts[row + symbol + _2]) else _0
            symbol += _1 if slot >= np.uint64(starts[row + symbol + _1]) else _0
            start = np.uint64(starts[row + symbol])
            width = np.uint64(starts[row + symbol + _1]) - start
            slot -= start
        out[i + _2] = symbol
        x2 = width * (x2 >> _15) + slot
        if x2 < _LOW:
            x2 = (x2 << _16) | np.uint64(words[at])
            at += _1
        row = np.uint64(contexts[i + _3]) * _ROW
        slot = x3 & _MASK
        width = np.uint64(starts[row + _1])
        symbol = _0
        if slot >= width:
            symbol = _8 if slot >= np.uint64(starts[row + _8]) else _0
            symbol += _4 if slot >= np.uint64(starts[row + symbol + _4]) else _0
            symbol += _2 if slot >= np.uint64(starts[row + symbol + _2]) else _0
            symbol += _1 if slot >= np.uint64(starts[row + symbol + _1]) else _0
            start = np.uint64(starts[row + symbol])
            width = np.uint64(starts[row + symbol + _1]) - start
            slot -= start
        out[i + _3] = symbol
        x3 = width * (x3 >> _15) + slot
        if x3 < _LOW:
            x3 = (x3 << _16) | np.uint64(words[at])
            at += _1
        i += _4
    while i < np.uint64(out.size) and at <= end:
        row = np.uint64(contexts[i]) * _ROW
        slot = x0 & _MASK
        width = np.uint64(starts[row + _1])
        symbol = _0
        if slot >= width:
            symbol = _8 if slot >= np.uint64(starts[row + _8]) else _0
            symbol += _4 if slot >= np.uint64(starts[row + symbol + _4]) else _0
            symbol += _2 if slot >= np.uint64(starts[row + symbol + _2]) else _0
            symbol += _1 if slot >= np.uint64(starts[row + symbol + _1]) else _0
            start = np.uint64(starts[row + symbol])
            width = np.uint64(starts[row + symbol + _1]) - start
            slot -= start
        out[i] = symbol
        x0 = width * (x0 >> _15) + slot
        if x0 < _LOW:
            x0 = (x0 << _16) | np.uint64(words[at])
            at += _1
        i += _1
    lanes[0], lanes[1], lanes[2], lanes[3] = x0, x1, x2, x3
    return np.int64(at)
