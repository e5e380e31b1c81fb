"""Exponent buckets, promotion and merging: what arXiv 2009.13003 says of them, against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.quantize import exponent_kernels
from dynaquant_core.quantize.exponent import MOST_STEPS, advanced, merged, quantised, stage_bits
from tests.reference import quantize_twins as twins

EXAMPLES = settings(max_examples=80, deadline=None)
PATTERNS = hnp.arrays(np.uint32, st.integers(0, 80), elements=st.integers(0, 2**32 - 1))
FINITE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-40, 3.4028235e38, 1.0, -1.0, 0.75, 1.5]),
)
CHANGES = hnp.arrays(np.float32, st.integers(1, 60), elements=FINITE)
BITS = st.one_of(st.none(), st.integers(2, 8))
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def decoded(link):
    """What a link adds to zeros."""
    return advanced(torch.zeros(link.codes.size), link).numpy()


def shared_exponents(values):
    """Exponents of float32 values; all subnormals share the one below the normal numbers'."""
    return np.maximum(np.frexp(np.abs(values.astype(np.float64)))[1], -126)


@EXAMPLES
@given(PATTERNS, st.data())
def test_kernels_match_their_twins(bits, data):
    table = np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 513, 513).astype(np.uint16)
    sides = []
    for module in (exponent_kernels, twins):
        counts, low, high = (
            np.zeros(513, np.int64),
            np.full(513, 2**31 - 1, np.uint32),
            np.zeros(513, np.uint32),
        )
        codes = np.zeros(bits.size, np.uint16)
        module.bucket_ranges(bits, counts, low, high)
        module.bucket_codes(bits, table, codes)
        sides.append([part.tolist() for part in (counts, low, high, codes)])
    assert sides[0] == sides[1]


@EXAMPLES
@given(CHANGES)
def test_a_bucket_is_a_sign_and_an_exponent_and_stands_for_its_middle(change):
    found = decoded(quantised(change, None))
    exponents = shared_exponents(change)
    for sign in (1, -1):
        for exponent in set(exponents[np.sign(change) == sign].tolist()):
            own = (np.sign(change) == sign) & (exponents == exponent)
            members = change[own].astype(np.float64)
            assert set(found[own].tolist()) == {float(np.float32((members.max() + members.min()) / 2))}
    assert not found[change == 0].any()


@EXAMPLES
@given(CHANGES)
def test_no_normal_number_is_off_by_more_than_half(change):
    error = np.abs(decoded(quantised(change, None)).astype(np.float64) - change)
    normal = np.abs(change) >= 2.0**-126
    assert (error[normal] <= 0.5 * np.abs(change[normal])).all()


@EXAMPLES
@given(CHANGES, st.integers(2, 8))
@example(np.float32([1.0, 1e-45, -1e-40, 3.4028235e38]), 2)  # a tie: both subnormals, of either sign
def test_promotion_keeps_the_largest_exponents(change, bits):
    whole, link = decoded(quantised(change, None)), quantised(change, bits)
    found = decoded(link)
    kept, lost = found != 0, (found == 0) & (whole != 0)
    assert np.array_equal(found[kept], whole[kept])
    assert link.buckets <= 2**bits
    assert len(set(found[kept].tolist())) <= 2**bits - 1
    if lost.any():
        assert len(set(found[kept].tolist())) == 2**bits - 1
        assert shared_exponents(whole[lost]).max() <= shared_exponents(found[kept]).min()


@EXAMPLES
@given(CHANGES, BITS)
def test_codes_are_ranks(change, bits):
    link = quantised(change, bits)
    counts = link.counts.tolist()
    assert counts == sorted(counts, reverse=True)
    assert min(counts) > 0
    assert link.codes.dtype == (np.uint8 if link.buckets <= 256 else np.uint16)


def test_all_exponents_at_once():
    change = np.arange(2**32 // 2**16, dtype=np.uint64).astype(np.uint32)
    change = (change << np.uint32(16)).view(np.float32)
    change = change[np.isfinite(change)]
    link = quantised(change, None)
    assert (link.buckets, link.codes.dtype) == (2 * 255 + 1, np.uint16)
    assert quantised(change, 8).buckets == 256


def test_the_papers_worked_example():
    """n = 10, b = 32, k = 5: 320 bits become 190 (sec. 3)."""
    change = np.float32([0.5, 0.6, 0.3, -0.3, 0.13, 0.14, -1.5, -1.2, -0.26, 0.51])
    link = quantised(change, None)
    assert (link.codes.size, link.buckets) == (10, 5)
    assert stage_bits(10, 32, link.buckets) == 190
    assert round(320 / 190, 2) == 1.68


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_did_not_move_keeps_its_bits_and_nothing_overflows(dtype):
    largest = torch.finfo(dtype).max
    start = torch.tensor([0.0, -0.0, 1.5, largest, -largest], dtype=dtype)
    still = advanced(start, quantised(np.zeros(5, np.float32), 2))
    assert torch.equal(torch.signbit(still), torch.signbit(start))
    assert torch.equal(still, start)
    pushed = advanced(start, quantised(np.float32([0, 0, 0, 3e38, -3e38]), None))
    assert torch.isfinite(pushed).all()
    assert pushed.dtype == dtype


@EXAMPLES
@given(st.lists(hnp.arrays(np.float32, 40, elements=FINITE), min_size=1, max_size=4), BITS, st.data())
def test_a_merged_link_gives_the_same_bits_as_its_parts(changes, bits, data):
    links = [quantised(change, bits) for change in changes]
    dtype = data.draw(st.sampled_from(DTYPES))
    start = torch.randn(40, generator=torch.Generator().manual_seed(len(changes))).to(dtype)
    apart = start
    for link in links:
        apart = advanced(apart, link)
    joined = merged(links)
    assert joined is not None
    assert torch.equal(advanced(start, joined), apart)
    assert joined.counts.tolist() == sorted(joined.counts.tolist(), reverse=True)


def test_what_grows_too_large_is_not_merged():
    draw = np.random.default_rng(0)
    links = [quantised(draw.standard_normal(5000).astype(np.float32), 8) for _ in range(3)]
    assert merged(links) is None
    assert merged(links[:1]) is links[0]
    still = quantised(np.zeros(4, np.float32), 2)
    assert merged([still] * MOST_STEPS).buckets == 1
    assert merged([still] * (MOST_STEPS + 1)) is None
