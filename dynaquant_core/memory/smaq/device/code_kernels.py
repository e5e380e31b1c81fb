"""SmaQ's loops as kernels for a device, each one pass over a tensor's memory; the same bits as on the CPU.

A program works on chunks (`chunks.CHUNK` values), a tile at a time.  Multiplications and additions must not
be fused (`path.LAUNCH`), or a value beside the border of two levels takes the other one.  Imported
only where Triton runs.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from dynaquant_core.memory.smaq.device.flag_kernels import MANY, VARYING, flags_at, store_flags
from dynaquant_core.memory.smaq.device.survey_kernels import combined, store_five
from dynaquant_core.quantize.device.offset_kernels import half_at

__all__ = ["classify", "classify_first", "read", "settle", "write"]

#: A smaller deviation is none; see `statistics`.
SMALLEST = tl.constexpr(2.0**-126)

UNIT, HALF_UNIT = tl.constexpr(2.0**-16), tl.constexpr(2.0**-17)


@triton.jit
def draw_at(key, index):
    """The float32 in (0, 1) that belongs to an int64 index."""
    return half_at(key, index).to(tl.float32) * UNIT + HALF_UNIT


@triton.jit
def standardised(x, mean, inverse, lowest, stretch, base, highest, stretch_down, top):
    """Distance from the mean in deviations, once values in gaps that are cut are spread over them.

    See `levels.Gaps`.
    """
    x = tl.minimum((x - lowest) * stretch + base, x)
    x = tl.maximum((x - highest) * stretch_down + top, x)
    return (x - mean) * inverse


@triton.jit
def coded(z, draw, geometry):
    """(whether an outlier, its code as int32) of each value; ``geometry``: `levels.Geometry`, float32[7]."""
    box, limit = tl.load(geometry), tl.load(geometry + 1)
    inner_scale, inner_last = tl.load(geometry + 2), tl.load(geometry + 3)
    outer_scale, outer_last = tl.load(geometry + 4), tl.load(geometry + 5)
    sign = tl.load(geometry + 6).to(tl.int32)
    inside = tl.minimum(tl.maximum((z + box) * inner_scale + draw, 0.0), inner_last)
    outside = (tl.minimum(tl.abs(z), limit) - box) * outer_scale + draw
    outside = tl.minimum(tl.maximum(outside, 0.0), outer_last)
    outlying = tl.abs(z) > box
    return outlying, tl.where(outlying, outside.to(tl.int32) + tl.where(z < 0, sign, 0), inside.to(tl.int32))


@triton.jit
def groups_before(counts, chunk, CHUNK: tl.constexpr):
    """(groups of eight inliers, of outliers) in the chunks before one, all of which are whole."""
    inner, outer = tl.zeros((MANY,), tl.int64), tl.zeros((MANY,), tl.int64)
    for base in range(0, chunk, MANY):
        at = base + tl.arange(0, MANY)
        there = at < chunk
        outliers = tl.load(counts + at, mask=there, other=0).to(tl.int64)
        inner += tl.where(there, (CHUNK - outliers + 7) // 8, 0)
        outer += (outliers + 7) // 8
    return tl.sum(inner), tl.sum(outer)


@triton.jit(do_not_specialize=VARYING)
def classify(
    values, geometry, mask, counts,
    mean: "fp32", inverse: "fp32", lowest: "fp32", stretch: "fp32", base: "fp32",
    highest: "fp32", stretch_down: "fp32", top: "fp32",
    size: "i64", CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Flags of outliers, and int16[chunks]: how many there are."""
    chunk = tl.program_id(0).to(tl.int64)
    box, found = tl.load(geometry), tl.zeros((TILE,), tl.int32)
    for start in range(chunk * CHUNK, chunk * CHUNK + CHUNK, TILE):
        at = start + tl.arange(0, TILE)
        x = tl.load(values + at, mask=at < size, other=0.0).to(tl.float32)
        z = standardised(x, mean, inverse, lowest, stretch, base, highest, stretch_down, top)
        outlying = (tl.abs(z) > box) & (at < size)
        found += outlying.to(tl.int32)
        store_flags(outlying, mask, start, size, TILE)
    tl.store(counts + chunk, tl.sum(found).to(tl.int16))


@triton.jit(do_not_specialize=VARYING)
def classify_first(
    values, geometry, partial, mask, counts, found, about,
    size: "i64", chunks: "i64", CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """`classify` by the statistics of `survey_kernels.survey`, before the host knows of them.

    Writes those to ``found`` float64[5], and the mean and 1 / deviation that it took to ``about`` float32[2].
    """
    number, low, high, mean, squares = combined(partial, chunks)
    # As `look.DeviceLook.statistics` and `cpu_path.scaled` do; the host compares.
    total = size.to(tl.float64)
    middle = mean * number / total
    away = mean - middle
    squares_of_all = squares + number * (away * away) + (total - number) * (middle * middle)
    deviation = tl.sqrt(tl.maximum(squares_of_all / total, 0.0)).to(tl.float32)
    deviation = tl.where(deviation >= SMALLEST, deviation, 1.0)
    inverse, middle32 = tl.div_rn(tl.full((), 1.0, tl.float32), deviation), middle.to(tl.float32)
    chunk = tl.program_id(0).to(tl.int64)
    if chunk == 0:
        store_five(found, number, low, high, mean, squares)
        tl.store(about, middle32)
        tl.store(about + 1, inverse)
    box, outliers = tl.load(geometry), tl.zeros((TILE,), tl.int32)
    for start in range(chunk * CHUNK, chunk * CHUNK + CHUNK, TILE):
        at = start + tl.arange(0, TILE)
        x = tl.load(values + at, mask=at < size, other=0.0).to(tl.float32)
        outlying = (tl.abs((x - middle32) * inverse) > box) & (at < size)
        outliers += outlying.to(tl.int32)
        store_flags(outlying, mask, start, size, TILE)
    tl.store(counts + chunk, tl.sum(outliers).to(tl.int16))


@triton.jit
def pack(scratch, groups, width, out, TILE: tl.constexpr):
    """Packs codes of a byte each, eight to a group of ``width`` bytes."""
    for base in range(0, groups, TILE // 8):
        group = base + tl.arange(0, TILE // 8)
        there = group < groups
        codes = tl.load(scratch.to(tl.pointer_type(tl.uint64)) + group, mask=there, other=0)
        words = codes & 0xFF
        for code in tl.static_range(1, 8):
            words |= ((codes >> (8 * code)) & 0xFF) << (width * code).to(tl.uint64)
        byte = tl.arange(0, 8)
        packed = (words[:, None] >> (byte * 8).to(tl.uint64)[None, :]) & 0xFF
        target = group.to(tl.int64)[:, None] * width + byte[None, :]
        tl.store(out + target, packed.to(tl.uint8), mask=there[:, None] & (byte < width)[None, :])


@triton.jit(do_not_specialize=VARYING)
def write(
    values, geometry, counts, inner, outer, scratch,
    mean: "fp32", inverse: "fp32", lowest: "fp32", stretch: "fp32", base: "fp32",
    highest: "fp32", stretch_down: "fp32", top: "fp32",
    key: "i64", size: "i64", chunks: "i64", inner_width: "i32", outer_width: "i32",
    CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Draws the codes and packs them; ``scratch``: 2 (CHUNK + 8) bytes a program.

    A chunk's codes go to the scratch at their ranks, and from there in groups to the runs: what other
    threads of a program have written is read behind a barrier.
    """
    share = tl.cdiv(chunks, tl.num_programs(0).to(tl.int64))
    first = tl.program_id(0).to(tl.int64) * share
    last = tl.minimum(first + share, chunks)
    near, far = groups_before(counts, tl.minimum(first, chunks), CHUNK)
    insides = scratch + tl.program_id(0).to(tl.int64) * (2 * (CHUNK + 8))
    outsides = insides + (CHUNK + 8)
    spare = tl.arange(0, 8)
    for chunk in range(first, last):
        start, ahead = chunk * CHUNK, 0
        at = start + tl.arange(0, TILE)
        for tile in range(CHUNK // TILE):
            inside = at < size
            x = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
            z = standardised(x, mean, inverse, lowest, stretch, base, highest, stretch_down, top)
            outlying, code = coded(z, draw_at(key, at), geometry)
            outlying = outlying & inside
            rank = tl.cumsum(outlying.to(tl.int32), 0)
            place = tile * TILE + tl.arange(0, TILE) - ahead - rank
            code = code.to(tl.uint8)
            tl.store(insides + place, code, mask=inside & ~outlying)
            tl.store(outsides + ahead + rank - 1, code, mask=outlying)
            ahead += tl.max(rank)
            at += TILE
        lying = tl.minimum(size - start, CHUNK).to(tl.int32) - ahead
        tl.store(insides + lying + spare, tl.zeros((8,), tl.uint8))
        tl.store(outsides + ahead + spare, tl.zeros((8,), tl.uint8))
        tl.debug_barrier()
        pack(insides, (lying + 7) // 8, inner_width, inner + near * inner_width, TILE)
        pack(outsides, (ahead + 7) // 8, outer_width, outer + far * outer_width, TILE)
        tl.debug_barrier()
        near += (lying + 7) // 8
        far += (ahead + 7) // 8


@triton.jit
def code_at(run, place, width, there):
    """Int32: the code at each place of a packed run."""
    bit = place * width
    byte, skip = bit >> 3, (bit & 7).to(tl.int32)
    low = tl.load(run + byte, mask=there, other=0).to(tl.int32)
    high = tl.load(run + byte + 1, mask=there & (skip + width > 8), other=0).to(tl.int32)
    return ((low | (high << 8)) >> skip) & ((1 << width) - 1)


@triton.jit(do_not_specialize=VARYING)
def read(
    mask, inner, outer, counts, table, out,
    size: "i64", first: "i64", last: "i64", inner_width: "i32", outer_width: "i32",
    CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Decodes the chunks from ``first`` to ``last``; ``table``: inliers' words, and behind them outliers'."""
    share = tl.cdiv(last - first, tl.num_programs(0).to(tl.int64))
    begin = first + tl.program_id(0).to(tl.int64) * share
    end = tl.minimum(begin + share, last)
    near, far = groups_before(counts, tl.minimum(begin, last), CHUNK)
    for chunk in range(begin, end):
        start, ahead = chunk * CHUNK, 0
        at = start + tl.arange(0, TILE)
        for tile in range(CHUNK // TILE):
            inside = at < size
            flag = flags_at(mask, at, inside)
            rank = tl.cumsum(flag, 0)
            near_place = near * 8 + (tile * TILE + tl.arange(0, TILE) - ahead - rank)
            far_place = far * 8 + (ahead + rank - 1)
            code = code_at(inner, near_place, inner_width, inside & (flag == 0))
            code += code_at(outer, far_place, outer_width, flag > 0) + flag * (1 << inner_width)
            tl.store(out + (at - first * CHUNK), tl.load(table + code), mask=inside)
            ahead += tl.max(rank)
            at += TILE
        near += (tl.minimum(size - start, CHUNK) - ahead + 7) // 8
        far += (ahead + 7) // 8


@triton.jit(do_not_specialize=VARYING)
def settle(
    values, geometry, table, out, counts,
    mean: "fp32", inverse: "fp32", lowest: "fp32", stretch: "fp32", base: "fp32",
    highest: "fp32", stretch_down: "fp32", top: "fp32",
    key: "i64", size: "i64", inner_width: "i32", CHUNK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """What `read` gives of what `write` wrote, and int16[chunks]: the outliers."""
    chunk = tl.program_id(0).to(tl.int64)
    found = tl.zeros((TILE,), tl.int32)
    for start in range(chunk * CHUNK, chunk * CHUNK + CHUNK, TILE):
        at = start + tl.arange(0, TILE)
        inside = at < size
        x = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
        z = standardised(x, mean, inverse, lowest, stretch, base, highest, stretch_down, top)
        outlying, code = coded(z, draw_at(key, at), geometry)
        code += tl.where(outlying, 1 << inner_width, 0)
        tl.store(out + at, tl.load(table + code), mask=inside)
        found += (outlying & inside).to(tl.int32)
    tl.store(counts + chunk, tl.sum(found).to(tl.int16))
