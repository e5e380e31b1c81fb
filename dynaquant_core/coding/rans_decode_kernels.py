"""Kernels that decode what `rans_kernels.encode` wrote; the same states, widths and order.

Two kernels do the same.  A state that wants a word one time in five cannot be foreseen, so the words are
taken without a branch; codes that hardly moved want a word one time in fifty, and then a branch is cheaper.
A third, for one context, has finer cells.
The turns are written out: a helper with an array argument costs two atomic reference counts a call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynaquant_core.coding.codec import Array
from dynaquant_core.jit import kernel

__all__ = ["ALONE_BITS", "CELL_BITS", "decode_alone", "decode_often", "decode_seldom", "fill_table"]

#: A decoder's search starts at the symbol that owns the first of 2**CELL_BITS slots: 256 cells a row.
CELL_BITS = 7
#: The same where there is one row: its 1024 cells fit the first cache, and fewer searches go on.
ALONE_BITS = 5

_LOW = np.uint64(1 << 16)
_HALF = np.uint64(0xFFFF)
_MASK = np.uint64((1 << 15) - 1)
_15 = np.uint64(15)
_16 = np.uint64(16)
_32 = np.uint64(32)
_CELL = np.uint64(CELL_BITS)
_ALONE = np.uint64(ALONE_BITS)
_ROW = np.uint64(15 - CELL_BITS)
_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)


@kernel
def fill_table(starts: Array, rows: int, levels: int, bits: int, table: Array) -> None:
    """Decoder's view of starts[rows * (levels + 1)].

    ``table`` ends with symbol << 32 | start << 16 | width for every symbol of every row, and begins with
    cells of 2**bits slots: a copy of the interval that holds the first slot of each cell, so that nearly
    every search ends where it begins.
    """
    per_row = 1 << (15 - bits)
    intervals = rows * per_row
    for row in range(rows):
        for symbol in range(levels):
            start = np.uint64(starts[row * (levels + 1) + symbol])
            width = np.uint64(starts[row * (levels + 1) + symbol + 1]) - start
            table[intervals + row * levels + symbol] = (np.uint64(symbol) << _32) | (start << _16) | width
        symbol = 0
        for cell in range(per_row):
            while symbol < levels - 1 and starts[row * (levels + 1) + symbol + 1] <= cell << bits:
                symbol += 1
            table[row * per_row + cell] = table[intervals + row * levels + symbol]


@kernel
def _outside(x: Any, interval: Any) -> Any:
    """Whether the state's slot lies behind the interval."""
    return (x & _MASK) - ((interval >> _16) & _HALF) >= interval & _HALF


@kernel
def _pop(x: Any, interval: Any) -> Any:
    """The state without its last symbol; below 2**16 it wants a word."""
    return (interval & _HALF) * (x >> _15) + (x & _MASK) - ((interval >> _16) & _HALF)


@kernel
def decode_often(
    out: Array,
    contexts: Array,
    levels: Any,
    table: Array,
    after: Any,
    bulk: Any,
    lanes: Array,
    words: Array,
    position: int,
    limit: int,
) -> np.int64:
    """Decodes into ``out``; the mirror of `rans_kernels.encode`, for streams that often want a word.

    Args:
        out: uint8 or uint16[n], filled.
        contexts: uint8 or uint16[n], the row of each symbol's table.
        levels: symbols a row; every symbol written is below it.
        table: uint64[rows * 256 + rows * levels], from `fill_table`.
        after: rows * 256 + 1: the interval after symbol s of row r stands at after + r * levels + s.
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
    after, bulk, levels = np.uint64(after), np.uint64(bulk), np.uint64(levels)
    while i < bulk and at <= end:
        row = np.uint64(contexts[i])
        found = table[(row << _ROW) + ((x0 & _MASK) >> _CELL)]
        while _outside(x0, found):
            found = table[after + row * levels + (found >> _32)]
        out[i] = found >> _32
        x0 = _pop(x0, found)
        want = np.uint64(x0 < _LOW)
        x0 = (x0 << (want << _4)) | (np.uint64(words[at]) & (_0 - want))
        at += want
        row = np.uint64(contexts[i + _1])
        found = table[(row << _ROW) + ((x1 & _MASK) >> _CELL)]
        while _outside(x1, found):
            found = table[after + row * levels + (found >> _32)]
        out[i + _1] = found >> _32
        x1 = _pop(x1, found)
        want = np.uint64(x1 < _LOW)
        x1 = (x1 << (want << _4)) | (np.uint64(words[at]) & (_0 - want))
        at += want
        row = np.uint64(contexts[i + _2])
        found = table[(row << _ROW) + ((x2 & _MASK) >> _CELL)]
        while _outside(x2, found):
            found = table[after + row * levels + (found >> _32)]
        out[i + _2] = found >> _32
        x2 = _pop(x2, found)
        want = np.uint64(x2 < _LOW)
        x2 = (x2 << (want << _4)) | (np.uint64(words[at]) & (_0 - want))
        at += want
        row = np.uint64(contexts[i + _3])
        found = table[(row << _ROW) + ((x3 & _MASK) >> _CELL)]
        while _outside(x3, found):
            found = table[after + row * levels + (found >> _32)]
        out[i + _3] = found >> _32
        x3 = _pop(x3, found)
        want = np.uint64(x3 < _LOW)
        x3 = (x3 << (want << _4)) | (np.uint64(words[at]) & (_0 - want))
        at += want
        i += _4
    while i < np.uint64(out.size) and at <= end:
        row = np.uint64(contexts[i])
        found = table[(row << _ROW) + ((x0 & _MASK) >> _CELL)]
        while _outside(x0, found):
            found = table[after + row * levels + (found >> _32)]
        out[i] = found >> _32
        x0 = _pop(x0, found)
        want = np.uint64(x0 < _LOW)
        x0 = (x0 << (want << _4)) | (np.uint64(words[at]) & (_0 - want))
        at += want
        i += _1
    lanes[0], lanes[1], lanes[2], lanes[3] = x0, x1, x2, x3
    return np.int64(at)


@kernel
def decode_seldom(  # noqa: C901 - the turns are written out
    out: Array,
    contexts: Array,
    levels: Any,
    table: Array,
    after: Any,
    bulk: Any,
    lanes: Array,
    words: Array,
    position: int,
    limit: int,
) -> np.int64:
    """As `decode_often`, faster for streams that seldom want a word: they branch where that one computes."""
    x0, x1, x2, x3 = lanes[0], lanes[1], lanes[2], lanes[3]
    i, at, end = _0, np.uint64(position), np.uint64(limit)
    after, bulk, levels = np.uint64(after), np.uint64(bulk), np.uint64(levels)
    while i < bulk and at <= end:
        row = np.uint64(contexts[i])
        found = table[(row << _ROW) + ((x0 & _MASK) >> _CELL)]
        while _outside(x0, found):
            found = table[after + row * levels + (found >> _32)]
        out[i] = found >> _32
        x0 = _pop(x0, found)
        if x0 < _LOW:
            x0 = (x0 << _16) | np.uint64(words[at])
            at += _1
        row = np.uint64(contexts[i + _1])
        found = table[(row << _ROW) + ((x1 & _MASK) >> _CELL)]
        while _outside(x1, found):
            found = table[after + row * levels + (found >> _32)]
        out[i + _1] = found >> _32
        x1 = _pop(x1, found)
        if x1 < _LOW:
            x1 = (x1 << _16) | np.uint64(words[at])
            at += _1
        row = np.uint64(contexts[i + _2])
        found = table[(row << _ROW) + ((x2 & _MASK) >> _CELL)]
        while _outside(x2, found):
            found = table[after + row * levels + (found >> _32)]
        out[i + _2] = found >> _32
        x2 = _pop(x2, found)
        if x2 < _LOW:
            x2 = (x2 << _16) | np.uint64(words[at])
            at += _1
        row = np.uint64(contexts[i + _3])
        found = table[(row << _ROW) + ((x3 & _MASK) >> _CELL)]
        while _outside(x3, found):
            found = table[after + row * levels + (found >> _32)]
        out[i + _3] = found >> _32
        x3 = _pop(x3, found)
        if x3 < _LOW:
            x3 = (x3 << _16) | np.uint64(words[at])
            at += _1
        i += _4
    while i < np.uint64(out.size) and at <= end:
        row = np.uint64(contexts[i])
        found = table[(row << _ROW) + ((x0 & _MASK) >> _CELL)]
        while _outside(x0, found):
            found = table[after + row * levels + (found >> _32)]
        out[i] = found >> _32
        x0 = _pop(x0, found)
        if x0 < _LOW:
            x0 = (x0 << _16) | np.uint64(words[at])
            at += _1
        i += _1
    lanes[0], lanes[1], lanes[2], lanes[3] = x0, x1, x2, x3
    return np.int64(at)


@kernel
def decode_alone(
    out: Array, table: Array, after: Any, bulk: Any, lanes: Array, words: Array, position: int, limit: int
) -> np.int64:
    """As `decode_often`, for one context: ``table`` is uint64[1024 + levels], ``after`` 1025."""
    x0, x1, x2, x3 = lanes[0], lanes[1], lanes[2], lanes[3]
    i, at, end = _0, np.uint64(position), np.uint64(limit)
    after, bulk = np.uint64(after), np.uint64(bulk)
    while i < bulk and at <= end:
        found = table[(x0 & _MASK) >> _ALONE]
        while _outside(x0, found):
            found = table[after + (found >> _32)]
        out[i] = found >> _32
        x0 = _pop(x0, found)
        want = np.uint64(x0 < _LOW)
        x0 = (x0 << (want << _4)) | (np.uint64(words[at]) & (_0 - want))
        at += want
        found = table[(x1 & _MASK) >> _ALONE]
        while _outside(x1, found):
            found = table[after + (found >> _32)]
        out[i + _1] = found >> _32
        x1 = _pop(x1, found)
        want = np.uint64(x1 < _LOW)
        x1 = (x1 << (want << _4)) | (np.uint64(words[at]) & (_0 - want))
        at += want
        found = table[(x2 & _MASK) >> _ALONE]
        while _outside(x2, found):
            found = table[after + (found >> _32)]
        out[i + _2] = found >> _32
        x2 = _pop(x2, found)
        want = np.uint64(x2 < _LOW)
        x2 = (x2 << (want << _4)) | (np.uint64(words[at]) & (_0 - want))
        at += want
        found = table[(x3 & _MASK) >> _ALONE]
        while _outside(x3, found):
            found = table[after + (found >> _32)]
        out[i + _3] = found >> _32
        x3 = _pop(x3, found)
        want = np.uint64(x3 < _LOW)
        x3 = (x3 << (want << _4)) | (np.uint64(words[at]) & (_0 - want))
        at += want
        i += _4
    while i < np.uint64(out.size) and at <= end:
        found = table[(x0 & _MASK) >> _ALONE]
        while _outside(x0, found):
            found = table[after + (found >> _32)]
        out[i] = found >> _32
        x0 = _pop(x0, found)
        want = np.uint64(x0 < _LOW)
        x0 = (x0 << (want << _4)) | (np.uint64(words[at]) & (_0 - want))
        at += want
        i += _1
    lanes[0], lanes[1], lanes[2], lanes[3] = x0, x1, x2, x3
    return np.int64(at)
