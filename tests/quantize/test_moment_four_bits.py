"""The 4-bit code of moments: error bounds, signs, positivity."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.errors import UnsupportedStateError
from dynaquant_core.quantize.blocks import BLOCK, FOUR, decode, encode
from tests.quantize.data import DISTRIBUTIONS, check_first_moments, sample

NORMAL = 2.0**-126
#: Octaves that a block spans -> relative error promised.
PROMISES = ((1.7, 0.05), (3.5, 0.10), (7.0, 0.20), (14.0, 0.43))


def finite(low=None):
    return st.floats(min_value=low, width=32, allow_nan=False, allow_infinity=False)


def round_trip(values, signed):
    codes, scales = encode(values, signed, FOUR)
    out = torch.full_like(values, math.nan)
    decode(codes, scales, out, FOUR)
    return codes, out


def check_second(exact, decoded):
    """One block of second moments keeps what `blocks` promises."""
    assert ((decoded > 0) == (exact > 0)).all()
    normal = exact >= NORMAL
    if not normal.any():
        return
    span = math.log2(exact.max() / exact[exact > 0].min())
    promised = next((error for limit, error in PROMISES if span < limit), None)
    if promised is None:  # what is too small for the block is raised, to 2^-13.9 of its largest at most
        normal &= exact >= exact.max() * 2.0**-14
        promised = 0.43
        assert (decoded[~normal] <= exact.max() * 2.0**-13.4).all()
    assert (np.abs(decoded - exact)[normal] <= promised * exact[normal]).all()


@settings(max_examples=150, deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 600), elements=finite(low=0.0)))
def test_second_moments_stay_positive_and_near(values):
    codes, out = round_trip(torch.from_numpy(values), signed=False)
    assert codes.max() < 16
    for start in range(0, values.size, BLOCK):
        part = slice(start, start + BLOCK)
        check_second(values[part].astype(np.float64), out[part].double().numpy())


@settings(max_examples=150, deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 600), elements=finite()))
def test_first_moments_keep_their_sign_and_are_near_or_small(values):
    codes, out = round_trip(torch.from_numpy(values), signed=True)
    assert 1 <= codes.min() <= codes.max() <= 15
    check_first_moments(values, out.numpy(), BLOCK, 2.0**-6.4, 0.43)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_typical_second_moments_keep_their_promise(name):
    values = torch.from_numpy(sample(name, 20_000)).double().square().clamp(max=3e38).float()
    _, out = round_trip(values, signed=False)
    for start in range(0, 20_000, BLOCK):
        part = slice(start, start + BLOCK)
        check_second(values[part].double().numpy(), out[part].double().numpy())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_second_moments_stay_positive_in_other_dtypes(dtype):
    values = torch.from_numpy(sample("narrow", 5000)).square().to(dtype)
    values[::7] = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    values[::11] = 0.0
    _, out = round_trip(values, signed=False)
    assert out.dtype == dtype
    assert ((out > 0) == (values > 0)).all()
    assert out.isfinite().all()


def test_negative_second_moments_are_refused():
    with pytest.raises(UnsupportedStateError, match="1 of 2"):
        encode(torch.tensor([1.0, -1.0]), signed=False, grid=FOUR)


@pytest.mark.parametrize("signed", [True, False])
def test_results_do_not_depend_on_the_number_of_threads(signed, monkeypatch):
    values = torch.from_numpy(sample("normal", 300_001)).abs()
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("DYNAQUANT_THREADS", threads)
        found.append(round_trip(values, signed))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)
