"""Kernels over tables of counts: their entropy, their cost under a model, the intervals of a model.

A table has a few thousand entries at most, where a NumPy expression costs more in calls than in arithmetic,
and holds the interpreter lock meanwhile, which another thread's tensor waits for.
Twins: tests/reference/coding_twins.py.
"""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = ["entropy", "fill_roots", "fill_starts", "spent"]

Counts = NDArray[np.int64]
Starts = NDArray[np.uint16]

_0, _1, _2 = np.int64(0), np.int64(1), np.int64(2)
_SCALE = np.int64(1 << 15)


@kernel
def entropy(joint: Counts) -> float:
    """Entropy n * H(symbol | context) in bits of ``joint`` int64[contexts, levels]."""
    bits = 0.0
    for row in range(joint.shape[0]):
        total = _0
        for symbol in range(joint.shape[1]):
            total += joint[row, symbol]
        for symbol in range(joint.shape[1]):
            count = joint[row, symbol]
            if count > 0:
                bits += count * log2(total / count)
    return bits


@kernel
def spent(joint: Counts, starts: Starts) -> float:
    """Bits of symbols with counts ``joint`` int64[r, l], coded by ``starts``, uint16[r, l + 1] or larger."""
    bits = 0.0
    for row in range(joint.shape[0]):
        for symbol in range(joint.shape[1]):
            if joint[row, symbol] > 0:
                width = np.float64(starts[row, symbol + 1]) - np.float64(starts[row, symbol])
                bits += joint[row, symbol] * (15.0 - log2(width))
    return bits


@kernel
def fill_roots(joint: Counts, exact: Counts, totals: Counts, roots: NDArray[np.int32]) -> None:
    """Writes what is stored of ``joint`` int64[r, l]: round(sqrt(count / 2)), at least 1 if a symbol occurs.

    ``exact`` int64[r] are the sums of the rows, ``totals`` int64[r] those that the decoder knows; counts are
    taken to their scale first.
    """
    for row in range(joint.shape[0]):
        scale = totals[row] / (2.0 * max(exact[row], _1))
        for symbol in range(joint.shape[1]):
            count = joint[row, symbol]
            roots[row, symbol] = max(np.int64(np.rint(np.sqrt(count * scale))), np.int64(count > 0))


@kernel
def _weight(root: Any, total: Any) -> Any:
    """What a root stands for: at most all occurrences of its context."""
    return min(_2 * np.int64(root) * np.int64(root), total)


@kernel
def _even(weight: Any, whole: Any) -> Any:
    """Width in proportion to a weight, rounded, at least 1 if it is above 0."""
    return max((weight * _SCALE + whole // _2) // whole, _1) if weight > 0 else _0


@kernel
def _fair(weight: Any, whole: Any, spare: Any) -> Any:
    """Width where all cannot be rounded up: 1, and a share of what is spare."""
    return _1 + weight * spare // whole if weight > 0 else _0


@kernel
def fill_starts(totals: Counts, roots: NDArray[np.int32], modes: Counts, starts: Starts) -> None:
    """Writes interval bounds in units of 2^-15; integers only, so that every machine gets the same.

    A symbol's width is in proportion to twice its root squared, and at least 1 where that is above 0; each
    row's likeliest symbol takes what the others leave.

    Args:
        totals: int64[r], occurrences of each context.
        roots: int32[r, l], below 2^24.
        modes: int64[r], the likeliest symbol, whose root does not count.
        starts: uint16[r, l + 1], written: each row from 0 to 2^15.
    """
    levels = roots.shape[1]
    for row in range(roots.shape[0]):
        total, mode = totals[row], modes[row]
        others, used = _0, _1
        for symbol in range(levels):
            weight = _weight(roots[row, symbol], total) if symbol != mode else _0
            others += weight
            used += np.int64(weight > 0)
        whole, spare = others + max(total - others, _1), _SCALE - used
        even = fair = _0
        for symbol in range(levels):
            weight = _weight(roots[row, symbol], total) if symbol != mode else _0
            even += _even(weight, whole)
            fair += _fair(weight, whole, spare)
        crowded, start = even >= _SCALE, _0
        for symbol in range(levels):
            starts[row, symbol] = start
            weight = _weight(roots[row, symbol], total)
            if symbol == mode:
                start += _SCALE - (fair if crowded else even)
            else:
                start += _fair(weight, whole, spare) if crowded else _even(weight, whole)
        starts[row, levels] = start
