"""Compiled loops over weights: counting, scoring, code assignment and decoding.

Kernels are serial, release the GIL, allocate nothing and never raise: wrappers in `cpu_path` validate and
allocate.  A *key* is a float's bit pattern, and its leading bits (a shift) are its cell; every index is
unsigned and inside its table by construction, so no bit pattern, NaN included, can reach outside.  Twins in
plain NumPy: tests/reference/quantize_twins.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = [
    "assign_levels",
    "assign_scored",
    "count_joint",
    "count_scored",
    "count_words",
    "fold",
    "fold_lanes",
    "place",
    "score_cells",
    "split_keys",
]

Array = NDArray[Any]

ONE, WORD = np.uint64(1), np.uint64(32)
COUNT = np.uint32(1)


@kernel
def count_words(words: Array, shift: Any, mask: Any, counts: Array) -> None:
    """Adds a histogram of keys to ``counts`` uint32[2 * cells], two counters a cell side by side.

    The counters take turns, because neighbouring weights often share a cell and one counter would wait for
    its own last increment; more than two would leave the nearest cache.  Keys come two to a word, uint64[n],
    for half the loads; ``shift`` is one less than the cell's and ``mask`` twice the largest cell, so that a
    cell comes out times two.
    """
    for i in range(np.uint64(words.size)):
        pair = words[i]
        counts[(pair >> shift) & mask] += COUNT
        counts[((pair >> (shift + WORD)) & mask) + ONE] += COUNT


@kernel
def fold_lanes(lanes: Array, counts: Array) -> None:
    """Adds both counters of each cell, uint32[2 * cells], to ``counts`` int64[cells]."""
    for cell in range(np.uint64(counts.size)):
        both = np.uint64(lanes[cell << ONE]) + np.uint64(lanes[(cell << ONE) + ONE])
        counts[cell] += np.int64(both)


@kernel
def fold(counts: Array, target: Array, out: Array) -> None:
    """Adds ``counts`` int64[cells] to ``out`` at ``target`` int64[cells], every one inside ``out``."""
    for cell in range(counts.size):
        if counts[cell] != 0:
            out[np.uint64(target[cell])] += counts[cell]


@kernel
def split_keys(bits: Array, shift: Any, split: Array, keys: Array) -> None:
    """Writes the cell of each of ``bits`` uint32[n] to ``keys`` uint32[n], where cells are split."""
    for i in range(bits.size):
        cell = np.uint64(bits[i] >> shift)
        keys[i] = (cell << ONE) + np.uint64((bits[i] & np.uint32(0x7FFFFFFF)) > split[cell])


@kernel
def score_cells(keys: Array, shift: Any, weights: Array, counts: Array, energy: Array) -> None:
    """Adds one to ``counts`` int64[cells] and w^2 to ``energy`` float64[cells] at each weight's key."""
    for i in range(keys.size):
        cell = np.uint64(keys[i] >> shift)
        weight = np.float64(weights[i])
        counts[cell] += 1
        energy[cell] += weight * weight


@kernel
def count_joint(keys: Array, shift: Any, rows: Array, base: Array, levels: Any, joint: Array) -> None:
    """Adds one to ``joint`` int64[r * levels] at (row of the weight's cell, base code), for every weight.

    ``rows`` uint32[cells]; ``base`` uint8[n], every code below ``levels``.
    """
    for i in range(keys.size):
        row = np.uint64(rows[np.uint64(keys[i] >> shift)])
        joint[row * levels + np.uint64(base[i])] += 1


@kernel
def count_scored(
    keys: Array,
    shift: Any,
    rows: Array,
    scores: Array,
    pruned_row: Any,
    prune: Any,
    protect: Any,
    base: Array,
    levels: Any,
    joint: Array,
) -> None:
    """As `count_joint`, with the rules on ``scores`` float32[n]; the protected row follows the pruned one."""
    protected_row = pruned_row + ONE
    for i in range(keys.size):
        row = np.uint64(rows[np.uint64(keys[i] >> shift)])
        if scores[i] > protect:
            row = protected_row
        elif scores[i] <= prune and row != protected_row:
            row = pruned_row
        joint[row * levels + np.uint64(base[i])] += 1


@kernel
def assign_levels(keys: Array, shift: Any, levels: Array, bits: Array, codes: Array, protected: Array) -> Any:
    """One pass: bits in, code out; returns how many are protected (code 1).

    ``levels`` uint8[cells] holds the rules on magnitude already; ``bits`` uint32[n]; ``codes`` uint8[n];
    ``protected`` uint32[n] receives the bits of the protected weights in order.
    """
    found = np.uint64(0)
    for i in range(keys.size):
        code = levels[np.uint64(keys[i] >> shift)]
        codes[i] = code
        if code == 1:
            protected[found] = bits[i]
            found += ONE
    return found


@kernel
def assign_scored(
    keys: Array,
    shift: Any,
    levels: Array,
    scores: Array,
    prune: Any,
    protect: Any,
    bits: Array,
    codes: Array,
    protected: Array,
) -> Any:
    """As `assign_levels`, with the rules on ``scores`` float32[n]: above protect, at or below prune."""
    found = np.uint64(0)
    for i in range(keys.size):
        code = levels[np.uint64(keys[i] >> shift)]
        if scores[i] > protect:
            code = np.uint8(1)
        elif scores[i] <= prune and code != 1:
            code = np.uint8(0)
        codes[i] = code
        if code == 1:
            protected[found] = bits[i]
            found += ONE
    return found


@kernel
def place(codes: Array, table: Array, protected: Array, out: Array) -> Any:
    """Decodes: ``out[i] = table[codes[i]]``, or the next of ``protected`` where the code is 1.

    ``table`` has 256 entries, so that every byte is inside; ``protected`` has as many entries as ``codes``
    has ones.  Returns how many protected weights were placed.
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
