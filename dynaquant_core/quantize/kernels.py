"""Compiled loops over weights: counting, scoring, code assignment and decoding.

Kernels are serial, release the GIL, allocate nothing and never raise: wrappers in `cpu_path` validate and
allocate.  Every index is unsigned and masked to its table by construction (a shift of 32 bits, a byte), so
no bit pattern, NaN included, can reach outside.  Twins in plain NumPy: tests/reference/quantize_twins.py.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "assign_levels",
    "assign_scored",
    "count_cells",
    "count_codes",
    "count_joint",
    "count_scored",
    "place",
    "score_cells",
]

Array = NDArray[Any]
kernel = numba.njit(nogil=True, cache=True, fastmath=False, boundscheck=False)
inline = numba.njit(nogil=True, cache=True, inline="always")

ONE, THREE, EIGHT = np.uint64(1), np.uint64(3), np.uint64(8)
MASK = np.uint32(0x7FFFFFFF)


@inline
def cell_of(bits: Any, shift: Any, split: Array) -> Any:
    """Cell of one bit pattern (`cells.Cells.of`)."""
    cell = np.uint64(bits >> shift)
    if split.size != 0:
        cell = (cell << ONE) + np.uint64((bits & MASK) > split[cell])
    return cell


@kernel
def count_cells(bits: Array, shift: Any, split: Array, cells: Any, counts: Array) -> None:
    """Adds a histogram of ``bits`` uint32[n] to ``counts`` uint32[4 * cells].

    Four sub-histograms take turns: neighbouring weights often share a cell, and one counter would wait for
    its own previous increment.
    """
    whole = bits.size - bits.size % 4
    second, third = cells + cells, cells + cells + cells
    for i in range(0, whole, 4):
        counts[cell_of(bits[i], shift, split)] += 1
        counts[cells + cell_of(bits[i + 1], shift, split)] += 1
        counts[second + cell_of(bits[i + 2], shift, split)] += 1
        counts[third + cell_of(bits[i + 3], shift, split)] += 1
    for i in range(whole, bits.size):
        counts[cell_of(bits[i], shift, split)] += 1


@kernel
def score_cells(
    scores: Array, weights: Array, shift: Any, split: Array, counts: Array, energy: Array
) -> None:
    """Adds scores' bits uint32[n] to ``counts`` uint32[cells] and weights^2 to ``energy`` float64[cells]."""
    for i in range(scores.size):
        cell = cell_of(scores[i], shift, split)
        weight = np.float64(weights[i])
        counts[cell] += 1
        energy[cell] += weight * weight


@kernel
def count_joint(
    bits: Array, shift: Any, split: Array, rows: Array, base: Array, levels: Any, joint: Array
) -> None:
    """Adds one to ``joint`` int64[r * levels] at (row of the weight's cell, base code), for every weight.

    ``rows`` uint32[cells]; ``base`` uint8[n], every code below ``levels``.
    """
    for i in range(bits.size):
        row = np.uint64(rows[cell_of(bits[i], shift, split)])
        joint[row * levels + np.uint64(base[i])] += 1


@kernel
def count_scored(
    bits: Array,
    scores: Array,
    shift: Any,
    split: Array,
    rows: Array,
    pruned_row: Any,
    prune: Any,
    protect: Any,
    base: Array,
    levels: Any,
    joint: Array,
) -> None:
    """As `count_joint`, with the rules on ``scores`` float32[n]; the protected row follows the pruned one."""
    protected_row = pruned_row + ONE
    for i in range(bits.size):
        row = np.uint64(rows[cell_of(bits[i], shift, split)])
        if scores[i] > protect:
            row = protected_row
        elif scores[i] <= prune and row != protected_row:
            row = pruned_row
        joint[row * levels + np.uint64(base[i])] += 1


@kernel
def assign_levels(
    bits: Array, shift: Any, split: Array, levels: Array, codes: Array, protected: Array
) -> Any:
    """One pass: bits in, code out; returns how many are protected (code 1).

    ``levels`` uint8[cells] holds the rules on magnitude already; ``codes`` uint8[n]; ``protected``
    uint32[n + 1] receives the bits of the protected weights in order (written without a branch: the entry
    after the last one is scratch).
    """
    found = np.uint64(0)
    for i in range(bits.size):
        code = levels[cell_of(bits[i], shift, split)]
        codes[i] = code
        protected[found] = bits[i]
        found += np.uint64(code == 1)
    return found


@kernel
def assign_scored(
    bits: Array,
    scores: Array,
    shift: Any,
    split: Array,
    levels: Array,
    prune: Any,
    protect: Any,
    codes: Array,
    protected: Array,
) -> Any:
    """As `assign_levels`, with the rules on ``scores`` float32[n]: above protect, at or below prune."""
    found = np.uint64(0)
    for i in range(bits.size):
        code = levels[cell_of(bits[i], shift, split)]
        if scores[i] > protect:
            code = np.uint8(1)
        elif scores[i] <= prune and code != 1:
            code = np.uint8(0)
        codes[i] = code
        protected[found] = bits[i]
        found += np.uint64(code == 1)
    return found


@kernel
def count_codes(codes: Array, counts: Array) -> None:
    """Adds a histogram of ``codes`` uint8[n] to ``counts`` int64[4 * 256], in four that take turns."""
    for i in range(codes.size):
        counts[((np.uint64(i) & THREE) << EIGHT) + np.uint64(codes[i])] += 1


@kernel
def place(codes: Array, table: Array, protected: Array, out: Array) -> Any:
    """Decodes: ``out[i] = table[codes[i]]``, or the next of ``protected`` where the code is 1.

    ``table`` has 256 entries, so that every byte is inside; ``protected`` has one entry more than there are
    ones in ``codes``.  Returns how many protected weights were placed.
    """
    found = np.uint64(0)
    for i in range(codes.size):
        code = codes[i]
        if code == 1:
            out[i] = protected[found]
            found += ONE
        else:
            out[i] = table[np.uint64(code)]
    return found
