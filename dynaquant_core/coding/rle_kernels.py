"""Kernel of run lengths: values and runs as tokens of opposite sign."""

from __future__ import annotations

import numba
import numpy as np

__all__ = ["tokenize"]

kernel = numba.njit(nogil=True, cache=True, fastmath=False, boundscheck=False)

_0 = np.uint64(0)
_1 = np.uint64(1)


@kernel
def tokenize(values, cap, tokens):
    """Writes -value, and the run length after it where that is above 1; returns the number of tokens.

    Args:
        values: uint8 or uint16[n].
        cap: longest run; a longer one is written as several.
        tokens: int16[n], enough because a run token stands for at least one more value.
    """
    n = np.uint64(values.size)
    longest = np.uint64(cap)
    i, count = _0, _0
    while i < n:
        value = values[i]
        stop = min(i + longest, n)
        j = i + _1
        while j < stop and values[j] == value:
            j += _1
        tokens[count] = -np.int64(value)
        count += _1
        if j - i > _1:
            tokens[count] = j - i
            count += _1
        i = j
    return np.int64(count)
