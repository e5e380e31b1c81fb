"""The 8-bit code of moments: error bounds, positivity, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.errors import CorruptFileError, StateMismatchError, UnsupportedStateError
from dynaquant_core.quantize.blocks import BLOCK, decode, encode, scale_count
from tests.quantize.data import DISTRIBUTIONS, check_first_moments, sample

SMALLEST, NORMAL = 2.0**-149, 2.0**-126
#: Octaves that a block spans -> relative error promised.
PROMISES = ((31, 0.05), (63, 0.10), (126, 0.20), (253, 0.43))


def finite(width=32, low=None):
    return st.floats(min_value=low, width=width, allow_nan=False, allow_infinity=False)


def round_trip(values, signed):
    codes, scales = encode(values, signed)
    out = torch.full_like(values, math.nan)
    decode(codes, scales, out)
    return codes, scales, out


def promised(block):
    """Relative error promised to a block of positive numbers."""
    positive = block[block > 0]
    octaves = math.log2(positive.max() / positive.min()) if positive.size else 0
    return next((error for span, error in PROMISES if octaves < span), 1.1)


@settings(max_examples=150, deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 600), elements=finite(low=0.0)))
def test_second_moments_stay_positive_and_near(values):
    _, _, out = round_trip(torch.from_numpy(values), signed=False)
    decoded, exact = out.numpy().astype(np.float64), values.astype(np.float64)
    assert (decoded[exact > 0] > 0).all()
    assert (decoded[exact == 0] == 0).all()
    assert np.isfinite(decoded).all()
    for start in range(0, values.size, BLOCK):
        part = slice(start, start + BLOCK)
        x, y = exact[part], decoded[part]
        normal = x >= NORMAL
        assert (np.abs(y - x)[normal] <= promised(x) * x[normal]).all()


@settings(max_examples=150, deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 600), elements=finite()))
def test_first_moments_keep_sign_and_are_near_or_far_below_their_block(values):
    _, _, out = round_trip(torch.from_numpy(values), signed=True)
    check_first_moments(values, out.numpy(), BLOCK, 2.0**-15.7, 0.05)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("size", [1, 255, 256, 257, 200_000])
def test_typical_moments_keep_their_promise(name, size):
    values = torch.from_numpy(sample(name, size))
    _, _, first = round_trip(values, signed=True)
    kept = first != 0
    assert ((first - values).abs()[kept] <= 0.05 * values.abs()[kept]).all()
    second = values.double().square().clamp(max=3e38).float()
    codes, scales, decoded = round_trip(second, signed=False)
    assert ((decoded > 0) == (second > 0)).all()
    error = (decoded - second).double().abs().numpy()
    for start in range(0, min(size, 20_000), BLOCK):
        part = slice(start, start + BLOCK)
        exact = second[part].double().numpy()
        assert (error[part] <= promised(exact) * exact + 2.0**-149).all()
    assert (codes.size, scales.size) == (size, scale_count(size))


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_second_round_trip_changes_nothing(name, signed):
    values = torch.from_numpy(sample(name, 3000))
    _, _, once = round_trip(values if signed else values.abs(), signed)
    codes, scales, twice = round_trip(once, signed)
    assert torch.equal(once, twice)
    again = encode(twice, signed)
    assert (again[0] == codes).all()
    assert (again[1] == scales).all()


def test_wide_blocks_keep_their_smallest_second_moment():
    values = torch.tensor([3.4e38, 1.0, 1e-20, 1e-38, SMALLEST, 0.0])
    _, _, out = round_trip(values, signed=False)
    assert (out[:-1] > 0).all()
    assert out[-1] == 0
    assert (out[:-1] / values[:-1]).log2().abs().max() <= 1.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_keep_the_promise_and_positivity(dtype):
    info = torch.finfo(dtype)
    tiny = info.smallest_normal * info.eps
    values = torch.from_numpy(sample("narrow", 5000)).square().to(dtype)
    values[::7] = tiny
    values[::11] = 0.0
    values[5] = min(info.max, 3.4e38)
    _, _, out = round_trip(values, signed=False)
    assert ((out > 0) == (values > 0)).all()
    assert out.isfinite().all()
    ordinary = values > max(info.smallest_normal, NORMAL)
    error = (out.double() - values.double()).abs()[ordinary] / values.double()[ordinary]
    assert error.max() <= 1.1
    _, _, first = round_trip(torch.from_numpy(sample("narrow", 5000)).to(dtype), signed=True)
    assert first.dtype == dtype


def test_views_parameters_and_empty_tensors_are_decoded_in_place():
    matrix = torch.zeros(4, 6)
    codes, scales = encode(torch.ones(12), signed=True)
    decode(codes, scales, matrix.t()[::2])
    assert matrix.sum() == 12
    assert (matrix[:, ::2] == 1).all()
    parameter = torch.nn.Parameter(torch.zeros(12))
    decode(codes, scales, parameter)
    assert (parameter == 1).all()
    codes, scales = encode(torch.zeros(0), signed=False)
    assert codes.size == scales.size == 0
    decode(codes, scales, torch.zeros(0))


@pytest.mark.parametrize(
    ("values", "signed"),
    [([1.0, math.nan], True), ([math.inf], True), ([-math.inf], True), ([-1e-9, 1.0], False)],
)
def test_what_cannot_be_coded_is_refused(values, signed):
    with pytest.raises(UnsupportedStateError, match="1 of"):
        encode(torch.tensor(values), signed)


def test_minus_zero_is_no_negative_second_moment():
    _, _, out = round_trip(torch.tensor([-0.0, 1.0]), signed=False)
    assert out.tolist() == [0.0, 1.0]


def test_scales_that_no_encoder_writes_are_refused():
    codes, scales = encode(torch.ones(300), signed=True)
    out = torch.empty(300)
    bad = [
        scales[:1],
        scales.astype(np.int32),
        scales | 7,
        np.full(2, 32767, np.int16),
        np.full(2, -32768, np.int16),
    ]
    for wrong in bad:
        with pytest.raises(CorruptFileError, match="scale"):
            decode(codes, wrong, out)
    for wrong in (torch.empty(299), torch.empty(300, dtype=torch.int32)):
        with pytest.raises(StateMismatchError, match="300 codes"):
            decode(codes, scales, wrong)


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.uint8, 300), st.integers(-1192, 1024), st.integers(0, 1), st.integers(0, 4))
def test_any_codes_under_valid_scales_decode_to_finite_numbers(codes, top, signed, step):
    scales = np.full(2, top * 16 + signed * 8 + step, dtype=np.int16)
    out = torch.empty(300)
    decode(codes, scales, out)
    assert out.isfinite().all()


@pytest.mark.parametrize("signed", [True, False])
def test_results_do_not_depend_on_the_number_of_threads(signed, monkeypatch):
    values = torch.from_numpy(sample("normal", 300_001)).abs()
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("DYNAQUANT_THREADS", threads)
        found.append(round_trip(values, signed))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)
