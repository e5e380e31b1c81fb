"""Compiled loops over the cells of a lattice: from a base to contexts and aims, residuals and histories.

A *cell* is one byte a weight: k + zero, above three bits of history where ``shift`` is 3.  An *aim* says
where the base expects the weight and which way it may have gone: 2 * k0 + (1 where up is the likelier way).
Serial, without allocation, never raising.  Twins: tests/reference/lattice_motion.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = [
    "aim_at",
    "fold",
    "look_up",
    "look_up_pairs",
    "narrow",
    "outside",
    "unfold",
    "widen",
    "write_history",
]

Array = NDArray[Any]

#: Places of a value within its cell, by the square root of its distance to the nearer border.
PLACES = np.float32(20)
HALF, TWO, FAR = np.float32(0.5), np.float32(2), np.float32(2.0**30)


@kernel
def outside(symbols: Array, middle: Any, most: Any) -> int:
    """How many of ``symbols`` uint8[n] are further than ``most`` from ``middle``."""
    found = 0
    for i in range(np.uint64(symbols.size)):
        found += abs(np.int64(symbols[i]) - middle) > most
    return found


@kernel
def narrow(symbols: Array, middle: Any, zero: Any) -> None:
    """Turns symbols k + middle uint8[n] into cells (k + zero) << 3, in place; where |k| >= zero, into cell 0.

    Args:
        symbols: changed.
        middle: uint8.
        zero: uint8.
    """
    away, last = np.uint8(middle - zero), np.uint8(2 * zero - 1)
    for i in range(np.uint64(symbols.size)):
        place = np.uint8(symbols[i] - away)  # wraps around below, so one comparison finds both ends
        inside = np.uint8(place - np.uint8(1)) < last
        symbols[i] = np.uint8(place << np.uint8(3)) if inside else np.uint8(0)


@kernel
def widen(cells: Array, middle: Any, zero: Any, symbols: Array) -> None:
    """Writes symbol k + middle of each narrow cell, uint8[n]; of an outlier's cell that of k = -zero."""
    for i in range(np.uint64(cells.size)):
        symbols[i] = np.uint8((np.int64(cells[i]) >> 3) - zero + middle)


@kernel
def look_up(keys: Array, table: Array, out: Array) -> None:
    """Writes ``table[key]`` of each of ``keys`` to ``out``; every key is inside the table."""
    for i in range(np.uint64(keys.size)):
        out[i] = table[np.uint64(keys[i])]


@kernel
def look_up_pairs(first: Array, second: Array, bits: Any, table: Array, out: Array) -> Any:
    """Writes ``table[first << bits | second]``, or its low byte, to ``out``; returns all entries or'ed.

    ``table`` uint16[2 ** (8 + bits)]; ``first`` uint8[n]; every one of ``second`` is below 2 ** bits.
    """
    seen, bits = np.uint16(0), np.uint64(bits)
    for i in range(np.uint64(first.size)):
        found = table[(np.uint64(first[i]) << bits) | np.uint64(second[i])]
        out[i] = found
        seen |= found
    return seen


@kernel
def aim_at(
    values: Array,
    offsets: Array,
    step: Any,
    most: Any,
    histories: Array,
    first: Any,
    contexts: Array,
    aims: Array,
) -> None:
    """Contexts and aims on a lattice that the base is not on.

    Args:
        values: float32[n], as the base decodes them.
        offsets: float32[n], of the new lattice.
        step: float32, of the new lattice.
        most: largest |k0|.
        histories: uint8[n], of the base; or one that is 0 for all, uint8[1].
        first: number of the first context.
        contexts: uint8[n], written.
        aims: int16[n], written.
    """
    every = np.uint64(1) if histories.size == contexts.size else np.uint64(0)
    for i in range(np.uint64(values.size)):
        x = np.divide(values[i], step) - offsets[i]
        if not abs(x) < FAR:
            x = np.float32(0)
        k = np.rint(x)
        place = x - k
        up = place >= 0
        border = max(HALF - abs(place), np.float32(0))
        bucket = min(np.int64(PLACES * np.sqrt(TWO * border)), np.int64(PLACES) - 1)
        history = np.int64(histories[i * every]) & 7
        age = history & 3
        relation = 0 if age == 0 else (age if (history < 4) == up else 3 + age)
        contexts[i] = np.uint8(first + bucket * 7 + relation)
        k0 = min(max(np.int64(k), -most), most)
        aims[i] = np.int16(2 * k0 + up)


@kernel
def fold(cells: Array, shift: Any, zero: Any, aims: Array, out: Array) -> int:
    """Writes each cell's residual against its aim, the likelier way first; returns how many are not 0.

    Residual d = k - k0, turned so that up is the likelier way, is 2 d - 1 where positive, else -2 d.
    """
    moved = 0
    for i in range(np.uint64(cells.size)):
        d = (np.int64(cells[i]) >> shift) - zero - (np.int64(aims[i]) >> 1)
        d = d if aims[i] & 1 else -d
        out[i] = 2 * d - 1 if d > 0 else -2 * d
        moved += d != 0
    return moved


@kernel
def unfold(residuals: Array, shift: Any, zero: Any, aims: Array, cells: Array) -> int:
    """Undoes `fold`, with empty histories; returns how many cells came out impossible."""
    wrong = 0
    for i in range(np.uint64(cells.size)):
        folded = np.int64(residuals[i])
        d = (folded + 1) >> 1 if folded & 1 else -(folded >> 1)
        k = (np.int64(aims[i]) >> 1) + (d if aims[i] & 1 else -d)
        good = -zero <= k < zero
        cells[i] = np.uint8((k + zero) << shift) if good else np.uint8(0)
        wrong += not good
    return wrong


@kernel
def write_history(cells: Array, aims: Array, zero: Any, before: Array) -> None:
    """Notes in narrow ``cells`` uint8[n] when and which way each weight last left its cell.

    0: never; 1 to 3: upwards, so many checkpoints ago (3: or more); 5 to 7: downwards.  ``aims`` int16[n] say
    where the base expected each weight; ``before`` are the base's narrow cells, uint8[n], or one for all.
    """
    every = np.uint64(1) if before.size == cells.size else np.uint64(0)
    for i in range(np.uint64(cells.size)):
        d = (np.int64(cells[i]) >> 3) - zero - (np.int64(aims[i]) >> 1)
        history = np.int64(before[i * every]) & 7
        age = history & 3
        aged = history + (1 if 0 < age < 3 else 0)
        now = aged if d == 0 else (1 if d > 0 else 5)
        cells[i] = (cells[i] & np.uint8(248)) | np.uint8(now)
