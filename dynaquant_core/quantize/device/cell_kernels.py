"""The seam's loops as kernels for a device, each one pass over a tensor: the counts and codes of `kernels`.

A value's cell is found as `cells.Cells` says: by its leading bits, and by a split where ``SPLIT`` says that
cells have one.  Counters are int32, so a launch is given less than 2^31 values; where many values share a
counter (zeros above all) a program adds them up before it touches it, and what remains is spread over
copies of the counters.  Imported only where Triton runs.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

__all__ = ["assign", "count", "joint", "place", "score"]

MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def cell_of(x, split, shift, inside, SPLIT: tl.constexpr):
    """Int32: the cell of each float32."""
    bits = x.to(tl.int32, bitcast=True)
    cell = (bits.to(tl.uint32, bitcast=True) >> shift.to(tl.uint32)).to(tl.int32)
    if SPLIT:
        cell = 2 * cell + ((bits & MAGNITUDE) > tl.load(split + cell, mask=inside, other=0)).to(tl.int32)
    return cell


@triton.jit
def add_apart(counts, index, special, inside):
    """Adds one at every index; those of ``special``, all of which have the same, in one addition."""
    tl.atomic_add(counts + index, 1, mask=inside & ~special, sem="relaxed")
    most = tl.sum((inside & special).to(tl.int32))
    where = tl.max(tl.where(inside & special, index, 0))
    tl.atomic_add(counts + where, most, mask=most > 0, sem="relaxed")


@triton.jit
def scores_of(weight, gradient, at, inside):
    """|g w|, float32."""
    slope = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    return tl.abs(weight * slope)


@triton.jit(do_not_specialize=["shift", "cells", "copies"])
def count(
    values, split, counts, shift: "i32", cells: "i32", copies: "i32", size: "i64",
    SPLIT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Adds the histogram of floating[size] to ``counts`` int32[copies, cells]."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < size
    x = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
    cell = cell_of(x, split, shift, inside, SPLIT)
    counts += (program % copies) * cells
    zero, below = x == 0, x.to(tl.int32, bitcast=True) < 0
    add_apart(counts, cell, zero & below, inside & ~(zero & ~below))
    add_apart(counts, cell, zero & ~below, inside & zero & ~below)


@triton.jit(do_not_specialize=["shift"])
def score(
    values, gradient, split, counts, energy, shift: "i32", size: "i64",
    SPLIT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Adds one to ``counts`` int32[cells] and w^2 to ``energy`` float64[cells] at each weight's score."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < size
    weight = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
    marks = scores_of(weight, gradient, at, inside)
    cell = cell_of(marks, split, shift, inside, SPLIT)
    none = marks == 0  # its cell is the first
    add_apart(counts, cell, none, inside)
    squares = weight.to(tl.float64) * weight.to(tl.float64)
    tl.atomic_add(energy + cell, squares, mask=inside & ~none, sem="relaxed")
    without = tl.sum(tl.where(inside & none, squares, 0.0))
    tl.atomic_add(energy, without, mask=without > 0, sem="relaxed")


@triton.jit
def ruled(row, marks, pruned, prune, protect):
    """A row or level where a rule on scores says another; the protected one follows the pruned one."""
    row = tl.where((marks <= prune) & (row != pruned + 1), pruned, row)
    return tl.where(marks > protect, pruned + 1, row)


@triton.jit(do_not_specialize=["shift", "pruned", "levels", "room", "copies"])
def joint(
    values, gradient, split, rows, base, counts, shift: "i32", pruned: "i32", prune: "fp32", protect: "fp32",
    levels: "i32", room: "i32", copies: "i32", size: "i64",
    SCORED: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Adds one to ``counts`` int32[copies, room] at row times ``levels`` plus base code, for every weight."""
    program = tl.program_id(0)
    at = program.to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < size
    weight = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
    row = tl.load(rows + cell_of(weight, split, shift, inside, SPLIT), mask=inside, other=0)
    if SCORED:
        row = ruled(row, scores_of(weight, gradient, at, inside), pruned, prune, protect)
    code = tl.load(base + at, mask=inside, other=0).to(tl.int32)
    add_apart(counts + (program % copies) * room, row * levels + code, (row == pruned) & (code == 0), inside)


@triton.jit(do_not_specialize=["shift"])
def assign(
    values, gradient, split, levels, codes, shift: "i32", prune: "fp32", protect: "fp32", size: "i64",
    SCORED: tl.constexpr, SPLIT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Codes uint8[size]: the level of each weight's cell, or what a rule on its score says."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < size
    weight = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
    level = tl.load(levels + cell_of(weight, split, shift, inside, SPLIT), mask=inside, other=0).to(tl.int32)
    if SCORED:
        level = ruled(level, scores_of(weight, gradient, at, inside), 0, prune, protect)
    tl.store(codes + at, level.to(tl.uint8), mask=inside)


@triton.jit
def place(codes, table, out, size: "i64", TILE: tl.constexpr):
    """out[i] = table[codes[i]]: words of any width, of which the table has 256."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < size
    code = tl.load(codes + at, mask=inside, other=0).to(tl.int32)
    tl.store(out + at, tl.load(table + code, mask=inside, other=0), mask=inside)
