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

__all__ = ["add_flags", "add_rows", "entropy", "fill_roots", "fill_starts", "spent"]

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
    for row in range(roots.shape[0]):
        total, mode = totals[row], modes[row]
        others, used = _0, _1
        for symbol in range(roots.shape[1]):
            weight = min(_2 * np.int64(roots[row, symbol]) ** _2, total) if symbol != mode else _0
            others += weight
            used += np.int64(weight > 0)
        whole = others + max(total - others, _1)
        taken = _0
        for symbol in range(roots.shape[1]):
            weight = min(_2 * np.int64(roots[row, symbol]) ** _2, total) if symbol != mode else _0
            if weight > 0:
                taken += max((weight * _SCALE + whole // _2) // whole, _1)
        crowded = taken >= _SCALE
        if crowded:
            taken = _0
            for symbol in range(roots.shape[1]):
                weight = min(_2 * np.int64(roots[row, symbol]) ** _2, total) if symbol != mode else _0
                taken += _1 + weight * (_SCALE - used) // whole if weight > 0 else _0
        start = _0
        for symbol in range(roots.shape[1]):
            starts[row, symbol] = start
            weight = min(_2 * np.int64(roots[row, symbol]) ** _2, total)
            if symbol == mode:
                start += _SCALE - taken
            elif weight > 0:
                even = max((weight * _SCALE + whole // _2) // whole, _1)
                start += _1 + weight * (_SCALE - used) // whole if crowded else even
        starts[row, roots.shape[1]] = start


@kernel
def add_rows(joint: Counts, rows: NDArray[np.uint16], merged: Counts) -> None:
    """Adds row i of ``joint`` int64[r, l] to row ``rows[i]`` of ``merged`` int64[m, l]."""
    for row in range(joint.shape[0]):
        into = np.uint64(rows[row])
        for symbol in range(joint.shape[1]):
            merged[into, symbol] += joint[row, symbol]


@kernel
def add_flags(joint: Counts, flags: Counts, held: Counts) -> None:
    """Counts the flags of `coding.flags` by class: how many there are, and how many of them are set.

    Args:
        joint: int64[from 1 to 256 contexts, from 1 to 16 symbols].
        flags: int64[4], added to: those that are set.
        held: int64[4], added to: all.
    """
    for context in range(joint.shape[0]):
        for symbol in range(joint.shape[1]):
            count: Any = joint[context, symbol]
            for flag in range(4):
                of = np.uint64((context >> (2 * flag)) & 3)
                held[of] += count
                flags[of] += count * ((symbol >> flag) & 1)
