"""What is known of a tensor before it is coded, in kernels for a device: its values are read once.

A program works on one chunk (`chunks.CHUNK` values), a tile at a time.  Imported only where Triton runs.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from dynaquant_core.memory.smaq.device.flag_kernels import MANY, VARYING, flags_at, store_flags

__all__ = ["combine", "combined", "compact", "count_flags", "expand", "store_five", "survey"]

#: Largest finite float32.
LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit(do_not_specialize=VARYING)
def survey(values, partial, size: "i64", chunks: "i64", CHUNK: tl.constexpr, TILE: tl.constexpr):
    """Of each chunk, float64[5, chunks]: values that are not zero, their lowest, highest, mean and squares.

    Squares: of distances from the chunk's mean.  A value that is not finite makes the lowest NaN.
    """
    chunk = tl.program_id(0).to(tl.int64)
    count, bad = tl.zeros((TILE,), tl.int32), tl.zeros((TILE,), tl.int32)
    low, high = tl.full((TILE,), float("inf"), tl.float32), tl.full((TILE,), float("-inf"), tl.float32)
    total, squares = tl.zeros((TILE,), tl.float64), tl.zeros((TILE,), tl.float64)
    begin = chunk * CHUNK
    at = begin + tl.arange(0, TILE)
    x = tl.load(values + at, mask=at < size, other=0.0).to(tl.float32)
    pivot = tl.sum(x.to(tl.float64)) / tl.maximum(tl.sum((x != 0).to(tl.int32)), 1)
    for start in range(begin, begin + CHUNK, TILE):
        at = start + tl.arange(0, TILE)
        x = tl.load(values + at, mask=at < size, other=0.0).to(tl.float32)
        there = x != 0
        bad += (~(tl.abs(x) <= LARGEST)).to(tl.int32)
        count += there.to(tl.int32)
        low = tl.minimum(low, tl.where(there, x, float("inf")))
        high = tl.maximum(high, tl.where(there, x, float("-inf")))
        distance = tl.where(there, x.to(tl.float64) - pivot, 0.0)
        total += distance
        squares += distance * distance
    number = tl.sum(count).to(tl.float64)
    away = tl.sum(total) / tl.maximum(number, 1.0)
    lowest = tl.where(tl.sum(bad) > 0, float("nan"), tl.min(low).to(tl.float64))
    tl.store(partial + chunk, number)
    tl.store(partial + chunks + chunk, lowest)
    tl.store(partial + 2 * chunks + chunk, tl.max(high).to(tl.float64))
    tl.store(partial + 3 * chunks + chunk, pivot + away)
    tl.store(partial + 4 * chunks + chunk, tl.sum(squares) - away * away * number)


@triton.jit
def combined(partial, chunks):
    """The same five of all chunks, from what `survey` wrote."""
    count, bad = tl.zeros((MANY,), tl.float64), tl.zeros((MANY,), tl.int32)
    low, high = tl.full((MANY,), float("inf"), tl.float64), tl.full((MANY,), float("-inf"), tl.float64)
    total, squares = tl.zeros((MANY,), tl.float64), tl.zeros((MANY,), tl.float64)
    for base in range(0, chunks, MANY):
        at = base + tl.arange(0, MANY)
        there = at < chunks
        number = tl.load(partial + at, mask=there, other=0.0)
        lowest = tl.load(partial + chunks + at, mask=there, other=float("inf"))
        bad += (lowest != lowest).to(tl.int32)
        low = tl.minimum(low, lowest)
        high = tl.maximum(high, tl.load(partial + 2 * chunks + at, mask=there, other=float("-inf")))
        count += number
        total += number * tl.load(partial + 3 * chunks + at, mask=there, other=0.0)
    number = tl.sum(count)
    mean = tl.sum(total) / tl.maximum(number, 1.0)
    for base in range(0, chunks, MANY):
        at = base + tl.arange(0, MANY)
        there = at < chunks
        away = tl.load(partial + 3 * chunks + at, mask=there, other=0.0) - mean
        squares += tl.load(partial + 4 * chunks + at, mask=there, other=0.0)
        squares += tl.load(partial + at, mask=there, other=0.0) * away * away
    return number, tl.where(tl.sum(bad) > 0, float("nan"), tl.min(low)), tl.max(high), mean, tl.sum(squares)


@triton.jit
def store_five(found, number, low, high, mean, squares):
    """Writes what `combined` gives to float64[5]."""
    tl.store(found, number)
    tl.store(found + 1, low)
    tl.store(found + 2, high)
    tl.store(found + 3, mean)
    tl.store(found + 4, squares)


@triton.jit(do_not_specialize=VARYING)
def combine(partial, found, chunks: "i64"):
    """Writes what `combined` gives; one program."""
    number, low, high, mean, squares = combined(partial, chunks)
    store_five(found, number, low, high, mean, squares)


@triton.jit
def sum_before(counts, chunk):
    """How many are counted in the chunks before one, int64."""
    before = tl.zeros((MANY,), tl.int64)
    for base in range(0, chunk, MANY):
        at = base + tl.arange(0, MANY)
        before += tl.load(counts + at, mask=at < chunk, other=0).to(tl.int64)
    return tl.sum(before)


@triton.jit(do_not_specialize=VARYING)
def compact(values, counts, out, mask, size: "i64", CHUNK: tl.constexpr, TILE: tl.constexpr):
    """What is not zero to ``out``, and its mask; ``counts``: the first row of what `survey` wrote."""
    chunk = tl.program_id(0).to(tl.int64)
    place = sum_before(counts, chunk)
    for start in range(chunk * CHUNK, chunk * CHUNK + CHUNK, TILE):
        at = start + tl.arange(0, TILE)
        x = tl.load(values + at, mask=at < size, other=0.0)
        there = x.to(tl.float32) != 0
        rank = tl.cumsum(there.to(tl.int32), 0)
        tl.store(out + place + rank - 1, x, mask=there)
        store_flags(there, mask, start, size, TILE)
        place += tl.max(rank)


@triton.jit(do_not_specialize=VARYING)
def count_flags(mask, counts, size: "i64", CHUNK: tl.constexpr):
    """How many bits are set in each chunk's part of a mask, int32[chunks]."""
    chunk = tl.program_id(0).to(tl.int64)
    byte = chunk * (CHUNK // 8) + tl.arange(0, CHUNK // 8)
    bits = tl.load(mask + byte, mask=byte * 8 < size, other=0).to(tl.int32)
    bits = bits - ((bits >> 1) & 0x55)
    bits = (bits & 0x33) + ((bits >> 2) & 0x33)
    tl.store(counts + chunk, tl.sum((bits + (bits >> 4)) & 0x0F))


@triton.jit(do_not_specialize=VARYING)
def expand(values, counts, mask, out, size: "i64", CHUNK: tl.constexpr, TILE: tl.constexpr):
    """Undoes `compact`; ``counts`` as `count_flags` wrote them."""
    chunk = tl.program_id(0).to(tl.int64)
    place = sum_before(counts, chunk)
    for start in range(chunk * CHUNK, chunk * CHUNK + CHUNK, TILE):
        at = start + tl.arange(0, TILE)
        inside = at < size
        there = flags_at(mask, at, inside)
        rank = tl.cumsum(there, 0)
        x = tl.load(values + place + rank - 1, mask=there > 0, other=0)
        tl.store(out + at, x, mask=inside)
        place += tl.max(rank)
