"""Kernels that count symbols, and pairs of context and symbol; and one that merges contexts.

Equal neighbours would wait for each other's increment, so four tables are filled in turn.
"""

from __future__ import annotations

import numpy as np

from dynaquant_core.coding.codec import Array
from dynaquant_core.jit import kernel

__all__ = ["add_rows", "count_pairs", "count_symbols"]


_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)


@kernel
def count_symbols(values: Array, step: int, counts: Array) -> None:
    """Adds the counts of every ``step``-th value to int64[4, bins]; ``bins`` is above every value."""
    n = np.uint64(values.size)
    one = np.uint64(step)
    two, three, four = one + one, one + one + one, one + one + one + one
    i = _0
    while i + three < n:
        counts[_0, np.uint64(values[i])] += 1
        counts[_1, np.uint64(values[i + one])] += 1
        counts[_2, np.uint64(values[i + two])] += 1
        counts[_3, np.uint64(values[i + three])] += 1
        i += four
    while i < n:
        counts[_0, np.uint64(values[i])] += 1
        i += one


@kernel
def count_pairs(values: Array, contexts: Array, levels: int, stride: int, counts: Array) -> None:
    """Adds the counts of (context, value), at context * levels + value, to four tables ``stride`` apart.

    ``counts`` is int64[4 * stride], or with a stride of 0 one table; the caller checked that it is as long as
    the symbols need.
    """
    n = np.uint64(values.size)
    width = np.uint64(levels)
    second = np.uint64(stride)
    third, fourth = second + second, second + second + second
    i = _0
    while i + _3 < n:
        counts[np.uint64(contexts[i]) * width + np.uint64(values[i])] += 1
        counts[second + np.uint64(contexts[i + _1]) * width + np.uint64(values[i + _1])] += 1
        counts[third + np.uint64(contexts[i + _2]) * width + np.uint64(values[i + _2])] += 1
        counts[fourth + np.uint64(contexts[i + _3]) * width + np.uint64(values[i + _3])] += 1
        i += _4
    while i < n:
        counts[np.uint64(contexts[i]) * width + np.uint64(values[i])] += 1
        i += _1


@kernel
def add_rows(joint: Array, rows: Array, merged: Array) -> None:
    """Adds row i of ``joint`` int64[r, l] to row ``rows[i]``, uint16, of ``merged`` int64[m, l]."""
    for row in range(joint.shape[0]):
        into = np.uint64(rows[row])
        for symbol in range(joint.shape[1]):
            merged[into, symbol] += joint[row, symbol]
