"""Evenly spaced levels: kernels match their twins, and a value comes back within half a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.errors import ConfigError, UnsupportedStateError
from dynaquant_core.quantize import even_kernels
from dynaquant_core.quantize.even import EvenLevels, bins_by_entropy, host_values
from dynaquant_core.quantize.packing import code_width, pack, packed_bytes, unpack
from tests.quantize.data import DISTRIBUTIONS, sample
from tests.reference import even_twins as twins

EXAMPLES = settings(max_examples=60, deadline=None)
VALUES = hnp.arrays(np.float32, st.integers(1, 80), elements=st.floats(-(2.0**100), 2.0**100, width=32))
BINS = st.integers(2, 256)


def filled(module, name, *arguments, out):
    """What a kernel or a twin makes of arrays of its own."""
    out = [array.copy() for array in out]
    getattr(module, name)(*arguments, *out)
    return out


def assert_twins(name, *arguments, out):
    ours, theirs = (filled(module, name, *arguments, out=out) for module in (even_kernels, twins))
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, other)


@EXAMPLES
@given(VALUES, st.floats(-10, 10), st.floats(0, 300), BINS)
def test_assign_even(values, low, inverse, bins):
    codes = np.empty(values.size, np.uint8)
    assert_twins("assign_even", values, low, inverse, float(bins - 1), out=[codes])


@EXAMPLES
@given(VALUES, st.integers(1, 40))
def test_tally_even(values, buckets):
    low, span = float(values.min()), float(values.max()) - float(values.min())
    inverse = 1 / span if span else 0.0
    assert_twins("tally_even", values, low, inverse, out=[np.zeros(buckets) for _ in range(3)])


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_look_up(dtype):
    draw = np.random.default_rng(0)
    table = draw.integers(0, 2**16, 256).astype(dtype)
    assert_twins("look_up", draw.integers(0, 256, 1000).astype(np.uint8), table, out=[np.empty(1000, dtype)])


@EXAMPLES
@given(VALUES, BINS)
def test_a_value_comes_back_within_half_a_step(values, bins):
    levels = EvenLevels.over(values, bins)
    back = levels.table()[levels.codes(values)].astype(np.float64)
    step = (levels.high - levels.low) / (bins - 1)
    largest = max(abs(levels.low), abs(levels.high))
    assert (np.abs(back - values) <= step / 2 + 2.0**-23 * largest).all()
    assert np.isfinite(back).all()
    assert back.min() == values.min()
    assert back.max() == values.max()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_levels_are_kept_when_they_are_quantised_again(name):
    levels = EvenLevels.over(sample(name, 1000), 16)
    codes = levels.codes(levels.table())
    np.testing.assert_array_equal(levels.table()[codes], levels.table())


def test_the_widest_range_that_float32_has():
    values = np.float32([-3.4e38, 0, 3.4e38])
    levels = EvenLevels.over(values, 3)
    assert levels.codes(values).tolist() == [0, 1, 2]
    assert np.isfinite(levels.table()).all()


@pytest.mark.parametrize(
    ("low", "high", "bins"),
    [(1.0, 0.0, 8), (0.0, np.inf, 8), (np.nan, 1.0, 8), (0.0, 1.0, 1), (0.0, 1.0, 257)],
)
def test_levels_that_are_none(low, high, bins):
    with pytest.raises(ConfigError):
        EvenLevels(low, high, bins)


@EXAMPLES
@given(hnp.arrays(np.int64, st.integers(1, 256), elements=st.integers(0, 1000)).filter(np.any))
def test_width_by_entropy(counts):
    bins = bins_by_entropy(counts, 1, 256)
    share = counts[counts > 0] / counts.sum()
    entropy = -(share * np.log2(share)).sum()
    assert bins >= 2**entropy * (1 - 1e-6)
    assert bins == 1 or bins / 2 < 2**entropy * (1 + 1e-6)
    assert bins_by_entropy(counts, 16, 64) == min(max(bins, 16), 64)


@EXAMPLES
@given(hnp.arrays(np.uint8, st.integers(0, 70)), st.integers(1, 8))
def test_packing(codes, width):
    codes = codes & np.uint8((1 << width) - 1)
    packed = pack(codes, width)
    assert packed.size == packed_bytes(codes.size, width)
    np.testing.assert_array_equal(unpack(packed, codes.size, width), codes)
    run = "".join(f"{byte:08b}"[::-1] for byte in packed)
    assert run[: codes.size * width] == "".join(f"{code:08b}"[::-1][:width] for code in codes)
    assert "1" not in run[codes.size * width :]


@pytest.mark.parametrize("bins", range(1, 257))
def test_a_width_is_the_least_that_holds_the_codes(bins):
    width = code_width(bins)
    assert 1 << width >= bins
    assert width == 1 or 1 << (width - 1) < bins


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_host_values(dtype):
    tensor = torch.randn(4, 6, dtype=dtype).t()
    expected = tensor.contiguous().reshape(-1).float().numpy()
    np.testing.assert_array_equal(host_values(tensor.requires_grad_()), expected)
    with pytest.raises(UnsupportedStateError):
        host_values(torch.zeros(3, dtype=torch.int32))
