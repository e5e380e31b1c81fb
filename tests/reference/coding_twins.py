"""Plain Python and NumPy twins of the kernels in coding/ and delta/: slow, short, with unbounded integers."""

from __future__ import annotations

import heapq
from itertools import accumulate, pairwise

import numpy as np

SCALE = 1 << 15
LOW = 1 << 16


# -- counting, runs, delta -----------------------------------------------------------------------


def joint_counts(values, contexts):
    counts = np.zeros((int(contexts.max()) + 1, int(values.max()) + 1), np.int64)
    np.add.at(counts, (contexts.astype(int), values.astype(int)), 1)
    return counts


def tokens(values, cap):
    found = []
    edges = np.flatnonzero(np.diff(values.astype(int), prepend=-1, append=-1))
    for begin, end in pairwise(edges):
        for at in range(begin, end, cap):
            found.append(-int(values[at]))
            if min(cap, end - at) > 1:
                found.append(min(cap, end - at))
    return np.array(found, np.int16)


def runs(found):
    values = []
    for token in found.tolist():
        values += [-token] if token <= 0 else [values[-1]] * (token - 1)
    return np.array(values)


def expected_tokens(counts, cap):
    """Of a memoryless sequence, token t at index t + levels - 1; cut off where the kernel does."""
    counts = [int(count) for count in counts]
    zero, expected = len(counts) - 1, [0.0] * (len(counts) + cap)
    for value, count in enumerate(counts):
        if not count:
            continue
        p, beyond = count / sum(counts), 1.0
        for _ in range(cap):
            beyond = beyond * p if beyond > 1e-18 else beyond
        begun = (count * (1.0 - p) + p * p) / (1.0 - beyond) if p < 1.0 else sum(counts) / cap
        expected[zero - value] += begun
        left, length = begun, 1
        while length < cap and left >= 1e-18:
            expected[zero + length] += left * (1.0 - p) if length > 1 else 0.0
            left, length = left * p, length + 1
        expected[zero + cap] += left
    return np.array(expected)


def cyclic(previous, other, levels):
    return (previous.astype(np.int64) - other.astype(np.int64)) % levels


def rearranged(values, source):
    return values[np.argsort(source, kind="stable")]


def restored(grouped, source):
    values = np.empty_like(grouped)
    values[np.argsort(source, kind="stable")] = grouped
    return values


# -- models --------------------------------------------------------------------------------------


def roots(joint, exact, totals):
    scale = totals / (2.0 * np.maximum(exact, 1))
    return np.maximum(np.rint(np.sqrt(joint * scale[:, None])), joint > 0).astype(np.int32)


def starts(totals, roots, modes):
    """One row at a time, in Python's integers."""
    found = []
    for total, row, mode in zip(totals.tolist(), roots.tolist(), modes.tolist(), strict=True):
        weights = [min(2 * root**2, total) for root in row]
        weights[mode] = max(total - (sum(weights) - weights[mode]), 1)
        whole = sum(weights)
        widths = [max((weight * SCALE + whole // 2) // whole, 1) if weight else 0 for weight in weights]
        if sum(widths) - widths[mode] >= SCALE:
            spare = SCALE - sum(weight > 0 for weight in weights)
            widths = [1 + weight * spare // whole if weight else 0 for weight in weights]
        widths[mode] = SCALE - (sum(widths) - widths[mode])
        found.append([0, *accumulate(widths)])
    return np.array(found, np.uint16)


# -- prefix codes --------------------------------------------------------------------------------


def huffman_cost(counts):
    """Bits of an optimal prefix code without a limit."""
    heap = sorted(int(count) for count in counts if count)
    total = 0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    return total


def packed_bits(values, lengths):
    """The bit string of canonical codes, first bit first."""
    order = sorted((int(length), symbol) for symbol, length in enumerate(lengths) if length)
    codes, code, before = {}, 0, 0
    for length, symbol in order:
        code <<= length - before
        codes[symbol] = format(code, f"0{length}b")
        code, before = code + 1, length
    return "".join(codes[int(value)] for value in values)


def bits_to_bytes(bits):
    padded = np.array([int(bit) for bit in bits], np.uint8)
    return np.packbits(padded, bitorder="little").tobytes()


def unpacked(data, lengths, n):
    """Reads n symbols bit by bit."""
    bits = "".join(str(bit) for bit in np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little"))
    names = {packed_bits([symbol], lengths): symbol for symbol in np.flatnonzero(lengths).tolist()}
    found, word = [], ""
    for bit in bits:
        word += bit
        if word in names:
            found.append(names[word])
            word = ""
        if len(found) == n:
            break
    return np.array(found)


# -- rANS ----------------------------------------------------------------------------------------


class Stack:
    """A rANS state over a list of words whose front is read first."""

    def __init__(self, state=LOW, words=()):
        self.state, self.words = state, list(words)

    def push(self, start, width):
        if self.state >= width << 17:
            self.words.insert(0, self.state & 0xFFFF)
            self.state >>= 16
        quotient, remainder = divmod(self.state, width)
        self.state = (quotient << 15) + remainder + start

    def pop(self, starts):
        slot = self.state & (SCALE - 1)
        symbol = int(np.searchsorted(np.asarray(starts), slot, side="right")) - 1
        start, width = int(starts[symbol]), int(starts[symbol + 1]) - int(starts[symbol])
        self.state = width * (self.state >> 15) + slot - start
        if self.state < LOW:
            self.state = self.state << 16 | self.words.pop(0)
        return symbol


def rans_encode(values, contexts, starts, bulk):
    """States and words of four interleaved states (one beyond ``bulk``)."""
    lanes = [Stack() for _ in range(4)]
    words = []
    for i in range(len(values) - 1, -1, -1):
        lane = lanes[i % 4 if i < bulk else 0]
        lane.words = words
        row = starts[int(contexts[i])]
        lane.push(int(row[values[i]]), int(row[values[i] + 1]) - int(row[values[i]]))
    return [lane.state for lane in lanes], words


def rans_decode(states, words, contexts, starts, bulk):
    lanes, words = [Stack(state) for state in states], list(words)
    for lane in lanes:
        lane.words = words
    return [lanes[i % 4 if i < bulk else 0].pop(starts[int(c)]) for i, c in enumerate(contexts)]


def flag_intervals(chances):
    """Where the intervals of 16 symbols begin in each of 256 contexts."""
    found = []
    for context in range(256):
        widths = []
        for symbol in range(16):
            width = 1
            for flag in range(4):
                chance = int(chances[context // 4**flag % 4])
                width *= chance if symbol // 2**flag % 2 else SCALE - chance
            widths.append(max(width // SCALE**3, 1))
        widths[widths.index(max(widths))] += SCALE - sum(widths)
        found.append([sum(widths[:symbol]) for symbol in range(17)])
    return found


# -- adaptive tables -----------------------------------------------------------------------------


class Decisions:
    """Learnt yes/no decisions; records slots, or reads them from a stack."""

    def __init__(self, prior, stack=None):
        self.counts = [list(map(int, pair)) for pair in np.asarray(prior).reshape(-1, 2)]
        self.stack, self.slots = stack, []

    def fixed(self, bit, ones):
        if self.stack is not None:
            return 1 - self.stack.pop([0, ones, SCALE])
        self.slots.append(ones if bit else ones << 16 | SCALE - ones)
        return bit

    def learnt(self, bit, context):
        pair = self.counts[context]
        total = sum(pair)
        bit = self.fixed(bit, min(max(pair[1] * SCALE // total, 32), SCALE - 32))
        pair[bit] += 32
        if total + 32 > 255 * 32:
            pair[:] = (pair[0] + 1) // 2, (pair[1] + 1) // 2
        return bit

    def number(self, number, bits):
        return sum(self.fixed(number >> i & 1, SCALE // 2) << i for i in range(bits - 1, -1, -1))

    def lengths(self, lengths):
        found, last = [], 8
        for value in lengths:
            before = [0, *found][-1]
            again = 2 if len(found) > 1 and found[-2] == 0 else 0
            if self.learnt(int(value > 0), (0 if before else 1) + again):
                node = 1
                for shift in (3, 2, 1, 0):
                    node = 2 * node + self.learnt(int(value) >> shift & 1, 4 + 16 * last + node)
                last = node - 16
                found.append(last)
            else:
                found.append(0)
        return found

    def root(self, root, predicted, kind):
        scaled = 16 + 2 * predicted
        octave = scaled.bit_length() - 5
        guess = min(2 * octave + (scaled >> octave + 3 & 1), 47)
        length = 0
        while length < 24 and self.learnt(int(root >> length > 0), (kind * 48 + guess) * 24 + length):
            length += 1
        if length < 2:
            return length
        low = length - 2
        lead = self.learnt(root >> low & 1, 2 * 48 * 24 + 2 * length + int(predicted >= 48 << low))
        return (2 | lead) << low | self.number(root & (1 << low) - 1, low)

    def rows(self, totals, rooted, roots, modes, levels):
        """Reads or records ``roots`` (int[rows, levels]); returns (roots, modes)."""
        known = np.zeros((len(totals), levels), object)
        previous = -1
        for row in np.flatnonzero(totals).tolist():
            moved = self.learnt(int(modes[row] != row), 2 * 48 * 24 + 50) if row < levels else 1
            modes[row] = self.number(int(modes[row]), (levels - 1).bit_length()) if moved else row
            for column in range(levels):
                if column == modes[row]:
                    known[row, column] = int(rooted[row]) // 23
                    continue
                below = previous >= 0 and column < row < levels
                known[row, column] = self.root(
                    int(roots[row][column]), guess(known, rooted, previous, row, column), int(below)
                )
            previous = row
        return known, modes


def guess(known, rooted, previous, row, column):
    levels = known.shape[1]
    west = 16 * known[row, column - 1] if column else 0
    if previous < 0:
        return west if row == 0 and column else west // 2
    ratio = lambda root: 16 * root * int(rooted[row]) // int(rooted[previous])  # noqa: E731
    shifted = column - (row - previous)
    diagonal = ratio(known[previous, shifted]) if shifted >= 0 else None
    if column < row < levels:
        mirror = 16 * known[column, row] if rooted[column] > 0 else 0
        return mirror if diagonal is None else (7 * mirror + 3 * diagonal) // 10
    north = ratio(known[previous, column])
    return (7 * north + 3 * west) // 10 if diagonal is None else (7 * diagonal + 2 * north + west) // 10
