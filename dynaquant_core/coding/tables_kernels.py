"""Kernels that code small tables: adaptive binary decisions, carried by one rANS state.

A table is a sequence of yes/no decisions, each with a probability that both sides learn as they go.  While
encoding, the decisions are only recorded (as slots: start << 16 | width of the interval that the decision
takes of 2**15); `push_slots` then feeds them backwards into the state, because rANS is last in, first out.
While decoding the same traversal reads the decisions from the state: both directions share their code, so
they cannot drift apart.

``lane`` is uint64[3]: state, position (in the slots while encoding, in the words while decoding), and
whether words ran out.  Everything is integer arithmetic: every machine decodes the same tables.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from dynaquant_core.coding.codec import Array
from dynaquant_core.jit import kernel

__all__ = ["CONTEXTS", "LENGTH_CONTEXTS", "code_lengths", "code_number", "code_rows", "push_slots"]

inlined = numba.njit(nogil=True, fastmath=False, boundscheck=False, inline="always")

#: A decision's learnt counts grow by STEP and are halved when their sum passes LIMIT.
STEP = 32
LIMIT = 255 * STEP
SCALE = 1 << 15
#: No decision is thought to be more certain than 1 - FLOOR / SCALE.
FLOOR = 32

#: Contexts of `code_rows`: (kind, prediction class, position in the unary code of the bit length) ...
CLASSES = 48
LENGTHS = 24
#: ... then (bit length, prediction) of the leading mantissa bit, then "the likeliest symbol is the context".
MANTISSA = 2 * CLASSES * LENGTHS
DIAGONAL = MANTISSA + 2 * (LENGTHS + 1)
CONTEXTS = DIAGONAL + 1

#: Contexts of `code_lengths`: (the two lengths before are zero or not), then (last length, tree node).
LENGTH_CONTEXTS = 4 + 16 * 16


@kernel
def push_slots(slots: Array, count: int, lane: Array, words: Array, top: int) -> int:
    """Feeds slots[:count] backwards into lane[0]; words go down from ``top``; returns the new top."""
    x = lane[0]
    for i in range(count - 1, -1, -1):
        start = np.uint64(slots[i] >> np.uint32(16))
        width = np.uint64(slots[i] & np.uint32(0xFFFF))
        if x >= width << np.uint64(17):
            top -= 1
            words[top] = x & np.uint64(0xFFFF)
            x >>= np.uint64(16)
        quotient = x // width
        x = (quotient << np.uint64(15)) + (x - quotient * width) + start
    lane[0] = x
    return top


@inlined
def _decide(bit: Any, ones: Any, slots: Array, lane: Array, words: Array, decoding: int) -> Any:
    """One decision of probability ones / 2**15: records it, or reads it."""
    if not decoding:
        start, width = (0, ones) if bit else (ones, SCALE - ones)
        slots[lane[1]] = (start << 16) | width
        lane[1] += np.uint64(1)
        return bit
    x = lane[0]
    slot = np.int64(x & np.uint64(SCALE - 1))
    bit = 1 if slot < ones else 0
    start, width = (0, ones) if bit else (ones, SCALE - ones)
    x = np.uint64(width) * (x >> np.uint64(15)) + np.uint64(slot - start)
    if x < np.uint64(1 << 16):
        x <<= np.uint64(16)
        if lane[1] < np.uint64(words.size):
            x |= np.uint64(words[lane[1]])
            lane[1] += np.uint64(1)
        else:
            lane[2] = np.uint64(1)
    lane[0] = x
    return bit


@inlined
def _code_bit(
    bit: Any, context: Any, counts: Array, slots: Array, lane: Array, words: Array, decoding: int
) -> Any:
    """One learnt decision; counts[2 * context:][:2] are how often it was 0 and 1."""
    zeros = counts[2 * context]
    total = zeros + counts[2 * context + 1]
    ones = min(max((total - zeros) * SCALE // total, FLOOR), SCALE - FLOOR)
    bit = _decide(bit, ones, slots, lane, words, decoding)
    counts[2 * context + bit] += STEP
    if total + STEP > LIMIT:
        counts[2 * context] = (counts[2 * context] + 1) >> 1
        counts[2 * context + 1] = (counts[2 * context + 1] + 1) >> 1
    return bit


@kernel
def code_number(number: Any, bits: int, slots: Array, lane: Array, words: Array, decoding: int) -> int:
    """A number below 2**bits, most significant bit first, every bit an even chance."""
    value = 0
    for i in range(bits - 1, -1, -1):
        value = 2 * value + _decide((number >> i) & 1, SCALE // 2, slots, lane, words, decoding)
    return value


@inlined
def _predict(roots: Array, rooted: Array, previous: Any, row: Any, column: Any, levels: int) -> Any:
    """Guesses a square root of a count (times 16) from what both sides know already.

    Codes move little and about as often up as down: the mirrored cell (below the diagonal), the same
    displacement in the row before, the cell above, the cell before.  -1 stands for "not known".
    """
    west = np.int64(roots[row * levels + column - 1]) * 16 if column > 0 else 0
    if previous < 0:
        return west if row == 0 and column > 0 else west // 2
    shifted = column - (row - previous)
    diagonal = -1
    if shifted >= 0:
        diagonal = np.int64(roots[previous * levels + shifted]) * 16 * rooted[row] // rooted[previous]
    if column < row < levels:
        mirror = np.int64(roots[column * levels + row]) * 16 if rooted[column] > 0 else 0
        return mirror if diagonal < 0 else (7 * mirror + 3 * diagonal) // 10
    north = np.int64(roots[previous * levels + column]) * 16 * rooted[row] // rooted[previous]
    if diagonal < 0:
        return (7 * north + 3 * west) // 10
    return (7 * diagonal + 2 * north + west) // 10


@inlined
def _code_root(
    root: Any,
    predicted: Any,
    kind: Any,
    counts: Array,
    slots: Array,
    lane: Array,
    words: Array,
    decoding: int,
) -> Any:
    """One square root of a count: its bit length in unary, then its lower bits."""
    scaled = 16 + 2 * predicted
    octave = 0
    while scaled >> (octave + 5):
        octave += 1
    guess = min(2 * octave + ((scaled >> (octave + 3)) & 1), CLASSES - 1)
    base = (kind * CLASSES + guess) * LENGTHS
    length = 0
    while length < LENGTHS and _code_bit(
        1 if root >> length else 0, base + length, counts, slots, lane, words, decoding
    ):
        length += 1
    if length < 2:
        return length
    low = length - 2
    high = 1 if predicted >= 48 << low else 0
    lead = _code_bit((root >> low) & 1, MANTISSA + 2 * length + high, counts, slots, lane, words, decoding)
    rest = code_number(root & ((1 << low) - 1), low, slots, lane, words, decoding)
    return ((2 | lead) << low) | rest


@kernel
def code_rows(
    totals: Array,
    rooted: Array,
    roots: Array,
    modes: Array,
    levels: int,
    counts: Array,
    slots: Array,
    lane: Array,
    words: Array,
    decoding: int,
) -> np.int64:
    """A table of counts, one row a context that occurs.

    Args:
        totals: int64[rows], occurrences of each context; rows of 0 are skipped.
        rooted: int64[rows], floor(16 * sqrt(totals)).
        roots: int32[rows * levels], the square roots; read or filled (the likeliest symbol's is derived).
        modes: int64[rows], each row's likeliest symbol; read or filled.
        levels: symbols a row.
        counts: int32[2 * CONTEXTS], the prior; changed.
        slots: uint32[capacity], filled while encoding.
        lane: uint64[3], see above.
        words: uint16[...], read while decoding.
        decoding: direction.

    Returns:
        1, or 0 where decoding met something that no encoder writes.
    """
    bits = 0
    while (levels - 1) >> bits:
        bits += 1
    previous = -1
    for row in range(totals.size):
        if totals[row] == 0:
            continue
        moved = 1
        if row < levels:
            moved = _code_bit(1 if modes[row] != row else 0, DIAGONAL, counts, slots, lane, words, decoding)
        modes[row] = code_number(modes[row], bits, slots, lane, words, decoding) if moved else row
        if modes[row] >= levels or lane[2]:
            return np.int64(0)
        for column in range(levels):
            if column == modes[row]:
                roots[row * levels + column] = rooted[row] // 23
                continue
            kind = 1 if previous >= 0 and column < row < levels else 0
            predicted = _predict(roots, rooted, previous, row, column, levels)
            roots[row * levels + column] = _code_root(
                np.int64(roots[row * levels + column]), predicted, kind, counts, slots, lane, words, decoding
            )
        previous = row
    return 1 - np.int64(lane[2])


@kernel
def code_lengths(
    lengths: Array, counts: Array, slots: Array, lane: Array, words: Array, decoding: int
) -> None:
    """The code lengths of a prefix code, uint8[symbols], each 0 (unused) to 15; read or filled."""
    last, before = 8, 0
    for i in range(lengths.size):
        zeros = (0 if before else 1) + (2 if i > 1 and lengths[i - 2] == 0 else 0)
        used = _code_bit(1 if lengths[i] else 0, zeros, counts, slots, lane, words, decoding)
        value = 0
        if used:
            node = 1
            for shift in (3, 2, 1, 0):
                bit = (np.int64(lengths[i]) >> shift) & 1
                context = 4 + 16 * last + node
                node = 2 * node + _code_bit(bit, context, counts, slots, lane, words, decoding)
            value = node - 16
            last = value
        lengths[i] = value
        before = value
