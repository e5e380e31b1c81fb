"""Kernels of run lengths: values and runs as tokens of opposite sign, and how many to expect."""

from __future__ import annotations

import numpy as np

from dynaquant_core.coding.codec import Array
from dynaquant_core.jit import kernel

__all__ = ["expect", "tokenize"]


_0 = np.uint64(0)
_1 = np.uint64(1)
#: Below this an expected count is dropped, before the products underflow and become slow.
_NOTHING = 1e-18


@kernel
def tokenize(values: Array, cap: int, tokens: Array) -> np.int64:
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


@kernel
def expect(counts: Array, cap: int, expected: Array) -> None:
    """Adds the tokens to expect of a memoryless sequence; see `rle.expected_histogram`.

    Args:
        counts: int64[levels], of each value; at least one above 0.
        cap: longest run.
        expected: float64[levels + cap], token t at index t + levels - 1.
    """
    n = 0
    for value in range(counts.size):
        n += counts[value]
    zero = counts.size - 1
    for value in range(counts.size):
        if counts[value] == 0:
            continue
        p = counts[value] / n
        beyond = 1.0
        for _ in range(cap):
            if beyond > _NOTHING:
                beyond *= p
        runs = counts[value] * (1.0 - p) + p * p
        begun = runs / (1.0 - beyond) if p < 1.0 else n / cap
        expected[zero - value] += begun
        left = begun
        for length in range(1, cap):
            if left < _NOTHING:
                break
            if length > 1:
                expected[zero + length] += left * (1.0 - p)
            left *= p
        expected[zero + cap] += left
