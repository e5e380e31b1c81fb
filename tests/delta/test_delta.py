"""Cyclic delta and rearrangement: laws, twins, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.delta import cyclic_delta, group_sizes, rearrange, restore_order, undo_cyclic_delta
from dynaquant_core.delta.paper import Paper
from dynaquant_core.errors import CorruptFileError
from tests.reference import coding_twins as twins

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.sampled_from([1, 2, 16, 34, 255, 256, 257, 1024]))
@settings(max_examples=60, deadline=None)
def test_delta_undoes_itself_and_equals_its_twin(seed, levels):
    rng = np.random.default_rng(seed)
    dtype = np.uint8 if levels <= 256 else np.uint16
    before, now = rng.integers(0, levels, (2, 500)).astype(dtype)
    delta = cyclic_delta(before, now, levels=levels)
    assert delta.dtype == dtype
    assert np.array_equal(delta, twins.cyclic(before, now, levels))
    assert np.array_equal(undo_cyclic_delta(before, delta, levels=levels), now)
    assert not cyclic_delta(now, now, levels=levels).any()


def test_a_codebook_may_shrink_or_grow():
    small, large = np.uint8([0, 5, 5]), np.uint8([33, 5, 0])
    for before, now in ((small, large), (large, small)):
        delta = cyclic_delta(before, now, levels=34)
        assert np.array_equal(undo_cyclic_delta(before, delta, levels=34), now)


@pytest.mark.parametrize(
    ("before", "now", "levels"),
    [([0, 1], [0], 4), ([4], [0], 4), ([0], [4], 4), ([0], [0], 0), ([0], [0], 1025)],
)
def test_delta_refuses(before, now, levels):
    with pytest.raises(ValueError, match=r"Cannot take|not below"):
        cyclic_delta(np.uint8(before), np.uint8(now), levels=levels)


@given(SEEDS, st.sampled_from([np.uint8, np.uint16]))
@settings(max_examples=60, deadline=None)
def test_rearrangement_is_a_stable_sort_that_can_be_undone(seed, dtype):
    rng = np.random.default_rng(seed)
    source = rng.integers(0, rng.integers(1, 40), 300).astype(dtype)
    values = rng.integers(0, 250, 300).astype(dtype)
    grouped = rearrange(values, source)
    assert np.array_equal(grouped, twins.rearranged(values, source))
    assert np.array_equal(restore_order(grouped, source), values)
    assert np.array_equal(restore_order(grouped, source), twins.restored(grouped, source))
    assert group_sizes(source).sum() == 300


def test_rearrangement_refuses_another_length():
    with pytest.raises(ValueError, match="Cannot group"):
        rearrange(np.zeros(3, np.uint8), np.zeros(2, np.uint8))
    with pytest.raises(ValueError, match="Cannot group"):
        restore_order(np.zeros(3, np.uint8), np.zeros(2, np.uint8))


def test_small_codes_of_a_base_with_many_come_back():
    values, base = np.uint8([1, 2, 3]), np.uint16([0, 300, 2])
    out = np.empty_like(values)
    Paper().decode(Paper().encode(values, base), out, base)
    assert out.tolist() == [1, 2, 3]


def test_a_value_that_does_not_fit_is_a_damaged_stream():
    values, base = np.uint16([1, 299, 3]), np.uint16([0, 300, 2])
    with pytest.raises(CorruptFileError, match="299, which does not fit uint8"):
        Paper().decode(Paper().encode(values, base), np.empty(3, dtype=np.uint8), base)
