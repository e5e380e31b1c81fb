"""Kernels of the lattice's movement match their plain twins bit for bit, and undo one another."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.coding.codec import MAX_LEVELS
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.lattice import motion_kernels as kernels
from dynaquant_core.methods.lattice.cells import NARROW, WIDE, Cells
from dynaquant_core.methods.lattice.contexts import (
    CLASSES,
    FIRST_NEW,
    SCHEMES,
    SHARED,
    SHARED_SCHEMES,
    aim_table,
    context_table,
)
from dynaquant_core.methods.lattice.motion import FirstLattice, KeptLattice
from dynaquant_core.quantize.lattice import round_step
from dynaquant_core.state.spec import TensorSpec
from tests.reference import lattice_motion as twins

EXAMPLES = settings(max_examples=80, deadline=None)
SIZES = st.integers(0, 90)
ALPHABETS = st.sampled_from([NARROW, WIDE])
SPEC, NO_OUTLIERS = TensorSpec((1,), "float32"), np.zeros(0, np.int32)
STEPS = st.floats(2.0**-100, 2.0**100).map(round_step).map(np.float32)


def any_bytes(size):
    return hnp.arrays(np.uint8, size, elements=st.integers(0, 255))


def integers(dtype, size, low, high):
    return hnp.arrays(dtype, size, elements=st.integers(low, high))


def histories(size):
    """A base's cells, or the one byte that stands for all."""
    return st.one_of(any_bytes(size), st.just(np.zeros(1, np.uint8)))


def assert_same(name, *arguments):
    """Runs kernel and twin on copies of the arguments and compares all that they leave behind."""
    left, right = deepcopy(arguments), deepcopy(arguments)
    assert getattr(kernels, name)(*left) == getattr(twins, name)(*right)
    for ours, theirs in zip(left, right, strict=True):
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8), err_msg=name)
    return left


@EXAMPLES
@given(SIZES.flatmap(any_bytes), st.sampled_from([15, 127]))
def test_outside(symbols, most):
    assert_same("outside", symbols, 128, most)


@EXAMPLES
@given(SIZES.flatmap(any_bytes))
def test_narrow_and_widen(symbols):
    cells = assert_same("narrow", symbols, np.uint8(128), np.uint8(16))[0]
    assert np.count_nonzero(cells == 0) == kernels.outside(symbols, 128, 15)
    widened = assert_same("widen", cells, 128, 16, np.zeros_like(cells))[-1]
    inside = cells > 0
    np.testing.assert_array_equal(widened[inside], symbols[inside])


@EXAMPLES
@given(st.sampled_from([np.uint8, np.uint16]), SIZES, st.data())
def test_look_up(dtype, size, data):
    keys = data.draw(integers(dtype, size, 0, 255))
    table = data.draw(integers(np.uint16, 256, 0, 65535))
    assert_same("look_up", keys, table, np.zeros(size, np.uint16))
    assert_same("look_up", keys, table.astype(np.uint8), np.zeros(size, np.uint8))


@EXAMPLES
@given(SIZES, STEPS, st.sampled_from([15, 127]), st.data())
def test_aim_at_on_any_bit_pattern(size, step, most, data):
    patterns = integers(np.uint32, size, 0, 2**32 - 1).map(lambda bits: bits.view(np.float32))
    near = hnp.arrays(np.float32, size, elements=st.floats(-200, 200, width=32)).map(lambda k: k * step)
    values = data.draw(st.one_of(patterns, near))
    offsets = data.draw(integers(np.int64, size, 0, 65535)) * 2 - 65535
    before = data.draw(histories(size))
    rooms = np.zeros(size, np.uint8), np.zeros(size, np.int16)
    drawn = (offsets / 131072).astype(np.float32)
    *_, contexts, aims = assert_same("aim_at", values, drawn, step, most, before, FIRST_NEW, *rooms)
    assert ((contexts >= FIRST_NEW) & (contexts < SCHEMES[0].size)).all()
    assert ((aims >= -2 * most) & (aims <= 2 * most + 1)).all()


def aims_of(size, alphabet):
    return integers(np.int16, size, -2 * alphabet.zero, 2 * alphabet.zero - 1)


@EXAMPLES
@given(SIZES, ALPHABETS, st.data())
def test_fold_and_unfold_undo_each_other(size, alphabet, data):
    cells, aims = data.draw(any_bytes(size)), data.draw(aims_of(size, alphabet))
    room = np.zeros(size, np.uint8 if alphabet.narrow else np.uint16)
    residuals = assert_same("fold", cells, alphabet.shift, alphabet.zero, aims, room)[-1]
    assert (residuals < 4 * alphabet.zero).all()  # symbols, with room to spare
    found = assert_same("unfold", residuals, alphabet.shift, alphabet.zero, aims, np.zeros(size, np.uint8))
    np.testing.assert_array_equal(found[-1], cells >> alphabet.shift << alphabet.shift)


@EXAMPLES
@given(SIZES, ALPHABETS, st.data())
def test_unfold_counts_cells_that_do_not_exist(size, alphabet, data):
    residuals, aims = data.draw(integers(np.uint16, size, 0, 65535)), data.draw(aims_of(size, alphabet))
    assert_same("unfold", residuals, alphabet.shift, alphabet.zero, aims, np.zeros(size, np.uint8))


@EXAMPLES
@given(SIZES, st.sampled_from([6, 8, 9]), st.data())
def test_look_up_pairs(size, bits, data):
    table = np.random.default_rng(bits).integers(0, 2**16, 2 ** (8 + bits)).astype(np.uint16)
    second = data.draw(integers(np.uint16, size, 0, 2**bits - 1))
    assert_same("look_up_pairs", data.draw(any_bytes(size)), second, bits, table, np.zeros(size, np.uint16))


@EXAMPLES
@given(SIZES, ALPHABETS, st.data())
def test_a_lattice_that_stays_is_one_with_an_aim_in_every_cell(size, alphabet, data):
    """Tables say what the twins of the other kind of lattice do, weight by weight."""
    base, packed = data.draw(any_bytes(size)), data.draw(any_bytes(size))
    aims = aim_table(alphabet)[base]
    kept, cells = KeptLattice(base, alphabet), Cells("w", SPEC, packed, NO_OUTLIERS, 1.0, 0, alphabet)
    residuals, moved = kept.residuals(cells)
    expected = np.zeros_like(residuals)
    assert moved == (twins.fold(packed, alphabet.shift, alphabet.zero, aims, expected) > 0)
    np.testing.assert_array_equal(residuals, expected)
    remembered = packed.copy()
    kept.remember(remembered)
    if alphabet.narrow:
        twins.write_history(packed, aims, alphabet.zero, base)
    np.testing.assert_array_equal(remembered, packed)
    np.testing.assert_array_equal(kept.refill(residuals, "w"), packed)


@EXAMPLES
@given(SIZES, ALPHABETS, st.sampled_from([70, 600, 65535]), st.data())
def test_a_lattice_that_stays_refuses_residuals_that_lead_out_of_it(size, alphabet, most, data):
    residuals, base = data.draw(integers(np.uint16, size, 0, most)), data.draw(any_bytes(size))
    aims, room = aim_table(alphabet)[base], np.zeros(size, np.uint8)
    if not twins.unfold(residuals, alphabet.shift, alphabet.zero, aims, room):
        KeptLattice(base, alphabet).refill(residuals, "w")
        return
    with pytest.raises(CorruptFileError, match="tensor w"):
        KeptLattice(base, alphabet).refill(residuals, "w")


@EXAMPLES
@given(SIZES, ALPHABETS, st.data())
def test_a_tensor_without_a_base_is_expected_at_0_and_has_no_histories(size, alphabet, data):
    packed = data.draw(any_bytes(size)) >> alphabet.shift << alphabet.shift
    first, cells = FirstLattice(size, alphabet), Cells("w", SPEC, packed, NO_OUTLIERS, 1.0, 0, alphabet)
    residuals, moved = first.residuals(cells)
    expected = np.zeros_like(residuals)
    upwards = np.ones(size, np.int16)
    assert moved == (twins.fold(packed, alphabet.shift, alphabet.zero, upwards, expected) > 0)
    np.testing.assert_array_equal(residuals, expected)
    np.testing.assert_array_equal(first.refill(residuals, "w"), packed)
    assert not first.keys.any()


@EXAMPLES
@given(SIZES, ALPHABETS, st.sampled_from([34, 260, 65535]), st.data())
def test_a_tensor_without_a_base_refuses_residuals_of_no_cell(size, alphabet, most, data):
    residuals, room = data.draw(integers(np.uint16, size, 0, most)), np.zeros(size, np.uint8)
    if not twins.unfold(residuals, alphabet.shift, alphabet.zero, np.ones(size, np.int16), room):
        np.testing.assert_array_equal(FirstLattice(size, alphabet).refill(residuals, "w"), room)
        return
    with pytest.raises(CorruptFileError, match="tensor w"):
        FirstLattice(size, alphabet).refill(residuals, "w")


@EXAMPLES
@given(SIZES, st.data())
def test_write_history(size, data):
    cells, aims = data.draw(any_bytes(size)), data.draw(aims_of(size, NARROW))
    written = assert_same("write_history", cells, aims, NARROW.zero, data.draw(histories(size)))[0]
    np.testing.assert_array_equal(written >> 3, cells >> 3)


def test_a_history_counts_to_three_and_turns_with_a_move():
    aims, at = np.zeros(1, np.int16), {0: 16 << 3, 1: 17 << 3, -1: 15 << 3}
    before, seen = np.zeros(1, np.uint8), []
    for k in (0, 1, 0, 0, 0, -1, 0):  # where the weight is against where the base expected it
        cells = np.array([at[k]], np.uint8)
        kernels.write_history(cells, aims, NARROW.zero, before)
        before = cells
        seen.append(int(cells[0]) & 7)
    assert seen == [0, 1, 2, 3, 3, 5, 6]


@pytest.mark.parametrize("alphabet", [NARROW, WIDE])
def test_contexts_of_a_lattice_that_stayed_are_their_own(alphabet):
    contexts = context_table(alphabet)
    assert ((contexts >= 1) & (contexts < FIRST_NEW)).all()


def test_schemes_give_every_context_a_symbol():
    for table in SCHEMES:
        assert set(table.tolist()) == set(range(int(table.max()) + 1))
        assert table.size == 169
    for table in SHARED_SCHEMES:
        assert table.size == CLASSES * (int(SHARED.max()) + 1)
        assert table.max() < MAX_LEVELS
