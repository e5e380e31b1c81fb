"""Kernels of the lattice match their plain twins bit for bit, on any bit pattern, NaN included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.quantize.lattice import kernels, offset_kernels
from dynaquant_core.quantize.lattice.steps import round_step
from tests.reference import lattice_twins as twins

EXAMPLES = settings(max_examples=80, deadline=None)
KEYS = st.integers(0, 2**64 - 1).map(np.uint64)
STARTS = st.one_of(st.integers(0, 40), st.integers(0, 2**62)).map(np.uint64)
PATTERNS = hnp.arrays(np.uint32, st.integers(0, 90), elements=st.integers(0, 2**32 - 1))
NEAR = hnp.arrays(np.float32, st.integers(0, 90), elements=st.floats(-200, 200, width=32))
VALUES = st.one_of(PATTERNS.map(lambda bits: bits.view(np.float32)), NEAR)
STEPS = st.floats(2.0**-100, 2.0**100).map(round_step).map(np.float32)
NORMAL_STEPS = st.floats(0.5, 2).map(round_step).map(np.float32)
LARGEST = np.finfo(np.float32).max
ENDS = st.sampled_from(
    [
        (-np.float32(65504), np.float32(65504)),
        (-LARGEST, LARGEST),
        (np.float32(0), LARGEST),
        (np.float32(2.0**-126), LARGEST),
        (-LARGEST, np.float32(-0.25)),
        (np.float32(9), np.float32(3)),
    ]
)


def memory(tile):
    """Scratch so small that a few values need several tiles."""
    words = np.zeros(tile + 1, dtype=np.uint64)
    return words, words.view(np.uint16)


def both(name, *arguments, out):
    """Runs kernel and twin, each on its own copy of ``out``; returns ((result, out), (result, out))."""
    sides = []
    for module in (offset_kernels if name == "fill_offsets" else kernels, twins):
        written = out.copy()
        sides.append((getattr(module, name)(*arguments, written), written))
    return sides


def assert_same(sides):
    (ours, left), (theirs, right) = sides
    assert ours == theirs
    np.testing.assert_array_equal(left.view(np.uint8), right.view(np.uint8))


@EXAMPLES
@given(KEYS, STARTS, st.integers(0, 90), st.integers(1, 9))
def test_offsets(key, start, count, tile):
    assert_same(both("fill_offsets", key, start, *memory(tile), out=np.zeros(count, np.float32)))


@EXAMPLES
@given(KEYS, st.integers(0, 2**62).map(np.uint64))
def test_one_offset_at_a_time(key, index):
    assert offset_kernels.offset_at(key, index) == twins.offsets(key, index, 1)[0]


@EXAMPLES
@given(KEYS, STARTS, VALUES, st.one_of(STEPS, NORMAL_STEPS), st.integers(1, 9))
def test_symbols_and_escapes(key, start, values, step, tile):
    symbols = np.full(values.size, 7, np.uint8)
    sides = both("quantise", key, start, *memory(tile), values, step, out=symbols)
    assert_same(sides)
    positions = np.flatnonzero(sides[0][1] == 0)
    assert sides[0][0] == positions.size
    escapes = np.zeros(positions.size, np.int32)
    assert_same(both("find_escapes", key, start, values, step, positions, out=escapes))


@EXAMPLES
@given(KEYS, STARTS, hnp.arrays(np.uint8, st.integers(0, 90)), STEPS, ENDS, st.integers(1, 9))
def test_values(key, start, symbols, step, ends, tile):
    out = np.zeros(symbols.size, np.float32)
    assert_same(both("place", key, start, *memory(tile), symbols, step, *ends, out=out))


@EXAMPLES
@given(KEYS, STARTS, hnp.arrays(np.int32, st.integers(0, 40)), STEPS, ENDS)
def test_escaped_values(key, start, escapes, step, ends):
    positions = np.cumsum(np.arange(escapes.size) % 3 + 1)
    out = np.zeros(200, np.float32)
    with np.errstate(over="ignore"):
        assert_same(both("place_escapes", key, start, positions, escapes, step, *ends, out=out))


@EXAMPLES
@given(NEAR, st.floats(-10, 10), st.integers(1, 16))
def test_moments(values, pivot, lanes):
    first = np.zeros(lanes)
    (_, ours), (_, theirs) = both("add_moments", values, pivot, first, out=np.zeros(lanes))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("k", [-128, -127, -1, 0, 127, 128])
def test_the_alphabet_ends_where_it_says(k):
    key, step = np.uint64(3), np.float32(0.5)
    values = ((np.float32(k) + twins.offsets(3, 0, 5)) * step).astype(np.float32)
    symbols = np.zeros(5, np.uint8)
    kernels.quantise(key, np.uint64(0), *memory(2), values, step, symbols)
    assert symbols.tolist() == [k + 128 if abs(k) <= 127 else 0] * 5
