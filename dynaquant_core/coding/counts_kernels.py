"""Kernels that count symbols, and pairs of context and symbol.

Equal neighbours would wait for each other's increment, so four (or two) tables are filled in turn.
"""

from __future__ import annotations

import numba
import numpy as np

__all__ = ["count_pairs", "count_symbols"]

kernel = numba.njit(nogil=True, cache=True, fastmath=False, boundscheck=False)

_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)
_4 = np.uint64(4)


@kernel
def count_symbols(values, bins, counts):
    """Adds the counts of ``values`` to int64[4, bins]; values from ``bins`` on count as the last bin."""
    n = np.uint64(values.size)
    last = np.uint64(bins - 1)
    i = _0
    while i + _4 <= n:
        counts[_0, min(np.uint64(values[i]), last)] += 1
        counts[_1, min(np.uint64(values[i + _1]), last)] += 1
        counts[_2, min(np.uint64(values[i + _2]), last)] += 1
        counts[_3, min(np.uint64(values[i + _3]), last)] += 1
        i += _4
    while i < n:
        counts[_0, min(np.uint64(values[i]), last)] += 1
        i += _1


@kernel
def count_pairs(values, contexts, levels, rows, counts):
    """Adds the counts of (context, value) to int64[2, rows * levels]; the caller checked both ranges."""
    n = np.uint64(values.size)
    width = np.uint64(levels)
    i = _0
    while i + _2 <= n:
        counts[_0, np.uint64(contexts[i]) * width + np.uint64(values[i])] += 1
        counts[_1, np.uint64(contexts[i + _1]) * width + np.uint64(values[i + _1])] += 1
        i += _2
    if i < n:
        counts[_0, np.uint64(contexts[i]) * width + np.uint64(values[i])] += 1
