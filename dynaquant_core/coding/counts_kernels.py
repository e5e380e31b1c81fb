"""Kernels that count symbols, and pairs of context and symbol.

Equal neighbours would wait for each other's increment, so four (or two) tables are filled in turn.
"""

from __future__ import annotations

import numba
import numpy as np

from dynaquant_core.coding.codec import Array

__all__ = ["count_pairs", "count_symbols"]

kernel = numba.njit(nogil=True, cache=True, fastmath=False, boundscheck=False)

_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)


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
def count_pairs(values: Array, contexts: Array, levels: int, counts: Array) -> None:
    """Adds the counts of (context, value) to int64[2, contexts * levels]; the caller checked both ranges."""
    n = np.uint64(values.size)
    width = np.uint64(levels)
    i = _0
    while i + _2 <= n:
        counts[_0, np.uint64(contexts[i]) * width + np.uint64(values[i])] += 1
        counts[_1, np.uint64(contexts[i + _1]) * width + np.uint64(values[i + _1])] += 1
        i += _2
    if i < n:
        counts[_0, np.uint64(contexts[i]) * width + np.uint64(values[i])] += 1
