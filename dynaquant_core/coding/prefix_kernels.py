"""Kernels of prefix codes: length-limited lengths, packing, table-driven unpacking.

Codes go into the bits lowest first (so they are stored reversed), and a table of 2**longest entries
``symbol << 4 | length`` decodes any code with one look-up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dynaquant_core.coding.codec import Array
from dynaquant_core.jit import kernel

__all__ = ["limited_lengths", "pack", "unpack", "unpack_runs"]


_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)
_6 = np.uint64(6)
_8 = np.uint64(8)
_15 = np.uint64(15)
_16 = np.uint64(16)
_24 = np.uint64(24)
_32 = np.uint64(32)
_63 = np.uint64(63)


@kernel
def limited_lengths(weights: Array, limit: int, merged: Array, is_leaf: Array, lengths: Array) -> None:
    """Optimal code lengths of at most ``limit`` bits: package-merge (Larmore and Hirschberg 1990).

    Args:
        weights: int64[n], ascending, n >= 2 and n <= 2**limit.
        limit: longest code.
        merged: int64[2, 2 * n], workspace.
        is_leaf: uint8[limit, 2 * n], workspace.
        lengths: uint8[n], zeros; filled, descending.
    """
    n = weights.size
    size = n
    for i in range(n):
        merged[0, i] = weights[i]
        is_leaf[0, i] = 1
    for level in range(1, limit):
        source, target = (level - 1) & 1, level & 1
        pairs, leaf, pair, count = size // 2, 0, 0, 0
        while leaf < n or pair < pairs:
            package = merged[source, 2 * pair] + merged[source, 2 * pair + 1] if pair < pairs else 0
            take_leaf = leaf < n and (pair >= pairs or weights[leaf] <= package)
            merged[target, count] = weights[leaf] if take_leaf else package
            is_leaf[level, count] = 1 if take_leaf else 0
            leaf += 1 if take_leaf else 0
            pair += 0 if take_leaf else 1
            count += 1
        size = count
    wanted = 2 * n - 2
    for level in range(limit - 1, -1, -1):
        leaves = 0
        for i in range(wanted):
            leaves += is_leaf[level, i]
        for i in range(leaves):
            lengths[i] += 1
        wanted = 2 * (wanted - leaves)


@kernel
def pack(values: Array, entries: Array, out: Array, at: Any) -> np.int64:
    """Writes the code entries[value] (code << 4 | length) of each value from byte ``at``; returns the end."""
    held, bits = _0, _0
    at = np.uint64(at)
    for i in range(np.uint64(values.size)):
        entry = np.uint64(entries[np.uint64(values[i])])
        held |= (entry >> _4) << bits
        bits += entry & _15
        if bits >= _32:
            out[at] = held
            out[at + _1] = held >> _8
            out[at + _2] = held >> _16
            out[at + _3] = held >> _24
            at += _4
            held >>= _32
            bits -= _32
    while bits > _0:
        out[at] = held
        at += _1
        held >>= _8
        bits = bits - _8 if bits > _8 else _0
    return np.int64(at)


@kernel
def unpack(out: Array, table: Array, longest: int, data: Array, bits: Array, end: Any) -> None:
    """Decodes the four quarters of ``out`` from four places of ``data``, in turn.

    Args:
        out: uint8 or uint16[4 * quarter], filled.
        table: uint32[2**longest], symbol << 4 | length.
        longest: bits of the longest code, at most 15, so that a 64-bit window holds four codes.
        data: uint64[...], one word longer than ``end`` and four codes more need.
        bits: int64[4], where each quarter begins, in bits; left where it stopped.
        end: bits of data; a hostile stream that passes it stops everything.
    """
    mask = (_1 << np.uint64(longest)) - _1
    q1 = np.uint64(out.size) >> _2
    q2, q3 = q1 + q1, q1 + q1 + q1
    b0, b1, b2, b3 = np.uint64(bits[0]), np.uint64(bits[1]), np.uint64(bits[2]), np.uint64(bits[3])
    end = np.uint64(end)
    i = _0
    while i < q1 and max(b0, b1, b2, b3) <= end:
        w0 = (data[b0 >> _6] >> (b0 & _63)) | ((data[(b0 >> _6) + _1] << _1) << (_63 - (b0 & _63)))
        w1 = (data[b1 >> _6] >> (b1 & _63)) | ((data[(b1 >> _6) + _1] << _1) << (_63 - (b1 & _63)))
        w2 = (data[b2 >> _6] >> (b2 & _63)) | ((data[(b2 >> _6) + _1] << _1) << (_63 - (b2 & _63)))
        w3 = (data[b3 >> _6] >> (b3 & _63)) | ((data[(b3 >> _6) + _1] << _1) << (_63 - (b3 & _63)))
        stop = min(i + _4, q1)
        while i < stop:
            entry = np.uint64(table[w0 & mask])
            out[i] = entry >> _4
            w0 >>= entry & _15
            b0 += entry & _15
            entry = np.uint64(table[w1 & mask])
            out[i + q1] = entry >> _4
            w1 >>= entry & _15
            b1 += entry & _15
            entry = np.uint64(table[w2 & mask])
            out[i + q2] = entry >> _4
            w2 >>= entry & _15
            b2 += entry & _15
            entry = np.uint64(table[w3 & mask])
            out[i + q3] = entry >> _4
            w3 >>= entry & _15
            b3 += entry & _15
            i += _1
    bits[0], bits[1], bits[2], bits[3] = b0, b1, b2, b3


@kernel
def unpack_runs(
    out: Array, table: Array, longest: int, levels: Any, data: Array, at: Any, end: Any
) -> np.int64:
    """Decodes values and run lengths until ``out`` is full.

    A symbol below ``levels`` is the value levels - 1 - symbol; any other is a run of symbol - levels + 1 of
    the value before.

    Args:
        out: uint8 or uint16[n], filled.
        table: uint32[2**longest], symbol << 4 | length.
        longest: bits of the longest code.
        levels: number of values.
        data: uint64[...], two words longer than ``end`` needs.
        at: where to begin, in bits.
        end: bits of data.

    Returns:
        Where it stopped, or -1 where the bits ran out or a run does not fit.
    """
    mask = (_1 << np.uint64(longest)) - _1
    at, end = np.uint64(at), np.uint64(end)
    levels = np.uint64(levels)
    n = np.uint64(out.size)
    i, value = _0, _0
    while i < n:
        if at > end:
            return np.int64(-1)
        window = (data[at >> _6] >> (at & _63)) | ((data[(at >> _6) + _1] << _1) << (_63 - (at & _63)))
        entry = np.uint64(table[window & mask])
        at += entry & _15
        symbol = entry >> _4
        if symbol < levels:
            value = levels - _1 - symbol
            out[i] = value
            i += _1
            continue
        again = symbol - levels
        if i == _0 or again > n - i:
            return np.int64(-1)
        stop = i + again
        while i < stop:
            out[i] = value
            i += _1
    return np.int64(at)
