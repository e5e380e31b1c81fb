"""Flags, four a symbol: kernels are their twins; the stream is as small as with one flag a symbol."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.coding import rans_kernels
from dynaquant_core.coding.counts import joint_counts
from dynaquant_core.coding.flags import Flags, chances_of, flags_bytes, intervals
from dynaquant_core.coding.flags_kernels import decode_flags
from dynaquant_core.coding.rans import RansContext
from dynaquant_core.errors import CorruptFileError
from tests.reference import coding_twins as twins

EXAMPLES = settings(max_examples=40, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
CHANCES = st.lists(st.integers(1, 2**15 - 1), min_size=4, max_size=4)


def drawn(seed, n, chances=(0.01, 0.3, 0.1, 0.05)):
    """(flags bool[n, 4], classes [n, 4], symbols, contexts)."""
    rng = np.random.default_rng(seed)
    classes = rng.choice(4, (n, 4), p=(0.7, 0.1, 0.1, 0.1))
    flags = rng.random((n, 4)) < np.array(chances)[classes]
    return (
        flags,
        classes,
        (flags @ [1, 2, 4, 8]).astype(np.uint8),
        (classes @ [1, 4, 16, 64]).astype(np.uint8),
    )


@EXAMPLES
@given(CHANCES)
def test_intervals_are_products_of_chances(chances):
    found = intervals(np.array(chances)).astype(int)
    assert found.tolist() == twins.flag_intervals(chances)
    widths = np.diff(found, axis=1)
    assert (widths >= 1).all()
    assert (widths.sum(axis=1) == 1 << 15).all()


@EXAMPLES
@given(SEEDS, st.integers(1, 300), CHANCES, st.sampled_from([np.uint8, np.uint16]))
def test_decoding_takes_the_states_of_the_twin(seed, n, chances, dtype):
    *_, values, contexts = drawn(seed, n)
    starts = intervals(np.array(chances))
    packed, inverse = np.empty(4096, np.uint32), np.empty(4096, np.uint64)
    rans_kernels.fill_widths(starts.ravel(), 256, 16, packed, inverse)
    lanes, words, bulk = np.full(4, 1 << 16, np.uint64), np.zeros(n + 8, np.uint16), n // 4 * 4
    top = rans_kernels.encode(values, contexts, 16, packed, inverse, bulk, lanes, words)
    states, expected = twins.rans_encode(values, contexts, starts, bulk)
    assert (lanes.tolist(), words[top:].tolist()) == (states, expected)
    assert twins.rans_decode(states, expected, contexts, starts, bulk) == values.tolist()
    padded, out = np.array([*expected, 0, 0, 0, 0], np.uint16), np.empty(n, dtype)
    end = decode_flags(out, contexts.astype(dtype), starts.ravel(), bulk, lanes, padded, 0, len(expected))
    assert end == len(expected)
    assert out.tolist() == values.tolist()
    assert lanes.tolist() == [1 << 16] * 4


@EXAMPLES
@given(SEEDS, st.integers(1, 3000), st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_roundtrip_and_size_whatever_the_chances(seed, n, chances):
    *_, values, contexts = drawn(seed, n, chances)
    payload, out = Flags().encode(values, contexts), np.empty(n, np.uint8)
    Flags().decode(payload, out, contexts)
    assert out.tobytes() == values.tobytes()
    assert abs(len(payload) - flags_bytes(joint_counts(values, contexts))) <= 16


@pytest.mark.parametrize(
    "chances", [(0.01, 0.3, 0.1, 0.05), (0.001, 0.01, 0.005, 0.002), (0.2, 0.5, 0.9, 0.4)]
)
def test_no_larger_than_one_flag_a_symbol(chances):
    flags, classes, values, contexts = drawn(0, 1 << 17, chances)
    alone = RansContext().encode(flags.ravel().astype(np.uint8), classes.ravel().astype(np.uint8))
    assert len(Flags().encode(values, contexts)) <= 1.003 * len(alone) + 24


def test_chances_are_shares_of_the_flags_of_a_class():
    values, contexts = np.uint8([0b0001, 0b0001, 0b0000, 0b1000]), np.uint8([0, 0, 0, 0b01_00_00_00])
    assert chances_of(joint_counts(values, contexts)).tolist() == [
        (2 * 32768 + 7) // 15,  # 2 of 15 of class 0
        32767,  # 1 of 1, held below certainty
        1,
        1,
    ]


def test_nothing_is_predicted_to_cost_nothing():
    assert flags_bytes(np.zeros((256, 16), np.int64)) == 0


def test_chances_that_are_no_chances_are_refused():
    *_, values, contexts = drawn(0, 200)
    payload = bytearray(Flags().encode(values, contexts))
    payload[:2] = b"\x00\x00"
    with pytest.raises(CorruptFileError, match="chances"):
        Flags().decode(payload, np.empty_like(values), contexts)
    with pytest.raises(CorruptFileError, match="load another checkpoint"):
        Flags().decode(payload[:20], np.empty_like(values), contexts)
