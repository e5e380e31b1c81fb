"""Kernels of quantize match their plain twins bit for bit, on any bit pattern, NaN and infinity included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.quantize import block_kernels, blocks, kernels, level_kernels
from dynaquant_core.quantize.buckets import BitBuckets, LogBuckets
from dynaquant_core.quantize.kmeans import kernels as kmeans_kernels
from tests.reference import quantize_twins as twins

PATTERNS = hnp.arrays(np.uint32, st.integers(0, 80), elements=st.integers(0, 2**32 - 1))
EXAMPLES = settings(max_examples=60, deadline=None)
SHIFT, CELLS = np.uint32(17), 1 << 15


def both(name, *make):
    """Runs kernel and twin on arrays made afresh; returns each side's (result, arrays)."""
    sides = []
    for module in (kernels, twins):
        arguments = [part() if callable(part) else part for part in make]
        sides.append((getattr(module, name)(*arguments), [a for a in arguments if isinstance(a, np.ndarray)]))
    return sides


def assert_same(sides):
    (ours, left), (theirs, right) = sides
    assert (ours or 0) == (theirs or 0)
    for mine, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(mine, other)


def random_rows(levels):
    return np.random.default_rng(0).integers(0, levels, CELLS)


@EXAMPLES
@given(PATTERNS)
def test_count_words(bits):
    words = np.ascontiguousarray(bits[: bits.size // 2 * 2]).view(np.uint64)
    mask = np.uint64(2 * (CELLS - 1))
    assert_same(both("count_words", words, np.uint64(16), mask, lambda: np.zeros(2 * CELLS, np.uint32)))


@EXAMPLES
@given(hnp.arrays(np.uint32, (20, 2), elements=st.integers(0, 2**32 - 1)))
def test_counters_are_folded(lanes):
    assert_same(both("fold_lanes", lanes.reshape(-1), lambda: np.arange(20)))
    target = np.random.default_rng(1).integers(0, 7, 20)
    assert_same(both("fold", lanes[:, 0].astype(np.int64), target, lambda: np.ones(7, np.int64)))


@EXAMPLES
@given(PATTERNS)
def test_split_keys(bits):
    cells = LogBuckets(0.01).cells
    sides = both(
        "split_keys", bits, np.uint32(cells.shift), cells.split, lambda: np.zeros(bits.size, np.uint32)
    )
    assert_same(sides)
    assert (sides[0][1][-1] == cells.of(bits)).all()


@EXAMPLES
@given(PATTERNS)
def test_score_cells(bits):
    weights = np.linspace(-3, 3, bits.size).astype(np.float32)
    made = (lambda: np.zeros(CELLS, np.int64)), (lambda: np.zeros(CELLS, np.float64))
    assert_same(both("score_cells", bits, SHIFT, weights, *made))


@EXAMPLES
@given(PATTERNS, PATTERNS)
def test_joint_counts(bits, marks):
    size = min(bits.size, marks.size)
    bits, scores = bits[:size], np.abs(marks[:size].view(np.float32))
    base = (np.arange(size) % 5).astype(np.uint8)
    rows = random_rows(9).astype(np.uint32)
    made = lambda: np.zeros(9 * 5, np.int64)  # noqa: E731
    assert_same(both("count_joint", bits, SHIFT, rows, base, np.uint64(5), made))
    rules = np.uint64(7), np.float32(1e-3), np.float32(10)
    assert_same(both("count_scored", bits, SHIFT, rows, scores, *rules, base, np.uint64(5), made))


@EXAMPLES
@given(PATTERNS, PATTERNS)
def test_assignment(bits, marks):
    size = min(bits.size, marks.size)
    bits, scores = bits[:size], np.abs(marks[:size].view(np.float32))
    levels = random_rows(6).astype(np.uint8)
    made = (lambda: np.zeros(size, np.uint8)), (lambda: np.zeros(size, np.uint32))
    assert_same(both("assign_levels", bits, SHIFT, levels, bits, *made))
    rules = np.float32(1e-3), np.float32(10)
    assert_same(both("assign_scored", bits, SHIFT, levels, scores, *rules, bits, *made))


@EXAMPLES
@given(hnp.arrays(np.uint8, st.integers(0, 80)), st.sampled_from([np.uint16, np.uint32, np.uint64]))
def test_codes_are_placed(codes, dtype):
    levels, kept = np.arange(256).astype(dtype), np.arange(1000, 1080).astype(dtype)
    assert_same(both("place", codes, levels, kept, lambda: np.zeros(codes.size, dtype)))


@settings(max_examples=100, deadline=None)
@given(
    hnp.arrays(
        np.float32,
        st.integers(1, 300),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    st.booleans(),
    st.sampled_from([blocks.EIGHT, blocks.FOUR]),
    st.none() | st.integers(0, 2**64 - 1),
)
def test_blocks(values, signed, grid, key):
    values = values if signed else np.abs(values)
    bits = values.view(np.uint32)
    count = blocks.scale_count(bits.size)
    codes, scales = np.zeros(bits.size, np.uint8), np.zeros(count, np.int16)
    steps = grid.signed if signed else grid.positive
    fine = blocks.NEAREST if key is None else blocks.DRAWN
    draws = blocks.NO_DRAWS if key is None else blocks.draws_of(key, bits.size)
    given = bits, *fine, signed, *steps, draws, blocks.FALLS
    assert block_kernels.encode_blocks(*given, codes, scales) == 0
    out, levels = np.zeros(bits.size), blocks.level_table(blocks.torch.float64).numpy()
    block_kernels.decode_blocks(codes, scales, levels, grid.signed.reach, grid.positive.reach, out)
    for block in range(count):
        part = slice(256 * block, 256 * (block + 1))
        expected, scale = twins.encode_block(bits[part], signed, *steps, draws[8 * block : 8 * block + 8])
        assert scale == scales[block]
        assert (codes[part] == expected).all()
        wide = twins.decode_block(expected, scale, steps.reach)
        clipped = np.sign(wide) * np.clip(np.abs(wide), 2.0**-149, np.finfo(np.float32).max)
        np.testing.assert_array_equal(out[part], clipped)


@settings(max_examples=50, deadline=None)
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 9)),
    st.integers(0, 2**32 - 1),
)
def test_levels_of_a_product(values, seed):
    """Whole and dyadic numbers, so that sums are exact in any order."""
    generator = np.random.default_rng(seed)
    rows, columns = (generator.integers(0, 4, size) / 2 for size in values.shape)
    found = []
    for fit in (level_kernels.fit_levels, twins.fit_levels):
        made = np.zeros(values.shape, np.uint8), np.zeros(rows.size), np.zeros(columns.size)
        fit(values, rows, columns, np.array([0.25, 1.0, 2.0]), *made)
        found.append(made)
    assert (found[0][0] == found[1][0]).all()
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-15)
    np.testing.assert_allclose(found[0][2], found[1][2], rtol=1e-14)


@pytest.mark.parametrize("size", [2, 3, 17, 64, 200])
def test_best_splits(size):
    generator = np.random.default_rng(size)
    values, weights = np.sort(generator.standard_normal(size)), generator.random(size) + 0.01
    sums = [np.concatenate(([0.0], np.cumsum(weights * values**power))) for power in range(3)]
    before = sums[2][1:] - sums[1][1:] ** 2 / sums[0][1:]
    earlier = np.zeros(size, np.int64)
    for layer in range(1, min(size, 12)):
        after, starts = np.full(size, np.inf), np.zeros(size, np.int64)
        kmeans_kernels.best_splits(layer, *sums, before, after, earlier, starts)
        expected, where = twins.best_splits(layer, *sums, before)
        np.testing.assert_array_equal(after[layer:], expected[layer:])
        np.testing.assert_array_equal(starts[layer:], where[layer:])
        before, earlier = after, starts


def test_bit_cells_are_a_plain_shift():
    cells = BitBuckets(6).cells
    assert cells.split.size == 0
    assert cells.of(np.array([0xFFFFFFFF], dtype=np.uint32))[0] == cells.size - 1
