"""Compiled loops over cells of a lattice that stays, four narrow cells a word: who moved, how old moves are.

Those that see every weight are plain arithmetic without branches or tables, which compilers turn into
vectors in all but `places`; the rest visit moved weights alone.
Serial, without allocation, never raising.  Twins: tests/reference/lattice_moved.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = [
    "age_cells",
    "count_flags",
    "flag_moves",
    "gather_ages",
    "gather_cells",
    "gather_residuals",
    "move_cells",
    "places",
    "remember",
]

Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]

_ONES, _AGES = np.uint64(0x01010101), np.uint64(0x03030303)
#: The upper five bits of a narrow cell, moved down; adding the same to a byte that is not 0 sets its bit 5.
_PLACES = np.uint64(0x1F1F1F1F)
#: Multipliers that bring bit 0, or bits 0 and 1, of each byte of a word together from bit 24 on.
_FLAGS_TOGETHER = np.uint64(1 << 24 | 1 << 17 | 1 << 10 | 1 << 3)
_AGES_TOGETHER = np.uint64(1 << 24 | 1 << 18 | 1 << 12 | 1 << 6)
_1, _2, _3, _5, _8, _24 = (np.uint64(number) for number in (1, 2, 3, 5, 8, 24))
_15, _255 = np.uint64(15), np.uint64(255)


@kernel
def flag_moves(base: Words, cells: Words, flags: Bytes) -> Any:
    """Sets bit j of ``flags[g]`` where cell 4 g + j is another than in the base; returns how many are.

    ``base`` and ``cells`` uint32[n], four narrow cells a word, the first lowest; histories do not count.
    """
    moved = np.uint64(0)
    for g in range(np.uint64(base.size)):
        apart = (np.uint64(base[g] ^ cells[g]) >> _3) & _PLACES
        flag = ((apart + _PLACES) >> _5) & _ONES
        flags[g] = ((flag * _FLAGS_TOGETHER) >> _24) & _15
        moved += ((flag * _ONES) >> _24) & _15
    return moved


@kernel
def gather_ages(base: Words, ages: Bytes) -> None:
    """Writes the ages of four narrow cells' last moves, two bits each, the first lowest, to ``ages[g]``."""
    for g in range(np.uint64(base.size)):
        ages[g] = (((np.uint64(base[g]) & _AGES) * _AGES_TOGETHER) >> _24) & _255


@kernel
def age_cells(base: Words, cells: Words) -> None:
    """Writes the cells of weights that stay: those of the base, moves of age 1 and 2 being one older."""
    for g in range(np.uint64(base.size)):
        word = np.uint64(base[g])
        cells[g] = word + ((word ^ (word >> _1)) & _ONES)


@kernel
def count_flags(flags: Bytes) -> Any:
    """How many flags are set; every byte is below 16."""
    count = np.uint64(0)
    for g in range(np.uint64(flags.size)):
        pairs = flags[g] - ((flags[g] >> _1) & _5)
        count += (pairs & _3) + (pairs >> _2)
    return count


@kernel
def places(flags: Bytes, groups: Words, where: Words) -> None:
    """Writes the positions of the set flags, in order; every byte is below 16.

    Nothing is branched on: what is not wanted is written over by the next.

    Args:
        flags: uint8[g].
        groups: uint32[g + 1], scratch.
        where: uint32[count_flags(flags) + 1], written up to the last but one.
    """
    some, found = np.uint64(0), np.uint64(0)
    for g in range(np.uint64(flags.size)):
        groups[some] = g
        some += np.uint64(flags[g] != 0)
    for number in range(some):
        group = np.uint64(groups[number])
        flag, first = np.uint64(flags[group]), group << _2
        for j in range(4):
            where[found] = first + np.uint64(j)
            found += (flag >> np.uint64(j)) & _1


@kernel
def gather_cells(base: Bytes, where: Words, at: Bytes) -> None:
    """Writes the base's cells of the weights that moved: ``at[i] = base[where[i]]``."""
    for i in range(np.uint64(where.size)):
        at[i] = base[where[i]]


@kernel
def gather_residuals(
    at: Bytes, cells: Bytes, where: Words, residuals: NDArray[np.uint16], values: Bytes
) -> None:
    """Writes the residuals of the weights that moved, less 1; none of them is 0, as they moved.

    Args:
        at: uint8[m], the base's cells.
        cells: uint8[n], all cells.
        where: uint32[m].
        residuals: uint16[2^16], `kept.Tables.residuals`.
        values: uint8[m], written.
    """
    for i in range(np.uint64(where.size)):
        values[i] = residuals[np.uint64(at[i]) << _8 | np.uint64(cells[where[i]])] - np.uint16(1)


@kernel
def move_cells(
    at: Bytes, values: Bytes, where: Words, table: NDArray[np.uint16], bits: Any, cells: Bytes
) -> Any:
    """Writes the cells of the weights that moved, histories included; the counterpart of `gather_residuals`.

    Args:
        at: uint8[m], the base's cells.
        values: uint8[m], residuals less 1.
        where: uint32[m].
        table: uint16[2^(8 + bits)], `kept.Tables.cells`.
        bits: of the largest residual; hostile residuals are cut to them.
        cells: uint8[n], written at ``where``.

    Returns:
        All bits of the entries used and of the residuals beyond ``bits``, set at `kept.IMPOSSIBLE` or above
        if one of them leads nowhere.
    """
    bits = np.uint64(bits)
    mask, seen = (_1 << bits) - _1, np.uint64(0)
    for i in range(np.uint64(where.size)):
        residual = np.uint64(values[i]) + _1
        cell = np.uint64(table[np.uint64(at[i]) << bits | (residual & mask)])
        cells[where[i]] = cell
        seen |= cell | (residual >> bits) << _8
    return seen


@kernel
def remember(base: Bytes, cells: Bytes) -> None:
    """Notes in narrow ``cells``, in place, when and which way each weight last left its cell of the base."""
    for i in range(np.uint64(cells.size)):
        before, place = base[i], cells[i] & np.uint8(248)
        aged = np.uint8((before & np.uint8(7)) + ((before ^ (before >> np.uint8(1))) & np.uint8(1)))
        moved = np.uint8(1) if place > before else np.uint8(5)
        cells[i] = place | (aged if place == before & np.uint8(248) else moved)
