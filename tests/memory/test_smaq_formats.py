"""The formats that SmaQ is compared with: sizes, roundings, extremes, and their names."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.errors import ConfigError, UnsupportedStateError
from dynaquant_core.memory.smaq import FORMATS, S2FP8, Cast, SmaQ, make_format

GENERATOR = torch.Generator().manual_seed(0)
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8_e5m2": 1, "fp8_e4m3": 1}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_every_format_gives_back_shape_dtype_and_the_same_twice(name, dtype):
    values = torch.randn(3, 700, generator=torch.Generator().manual_seed(1)).to(dtype)
    form, before = make_format(name), values.clone()
    packed = form.encode(values, torch.Generator().manual_seed(2))
    decoded = packed.decode()
    assert (decoded.shape, decoded.dtype) == (values.shape, dtype)
    assert torch.equal(packed.decode(), decoded)
    settled, stored, _ = form.settle(values, torch.Generator().manual_seed(2))
    assert torch.equal(settled, decoded)
    assert stored == pytest.approx(packed.nbytes, rel=0.01)
    assert torch.equal(values, before)
    decoded.zero_()
    assert torch.equal(packed.decode(), settled), "what is packed is nobody else's memory"
    assert form.encode(values[:0], GENERATOR).decode().shape == (0, 700)


@pytest.mark.parametrize("name", BYTES)
def test_casts_are_torchs_own_and_saturate(name):
    form = Cast(name)
    values = torch.tensor([0.1, -3.3, 1e-3, 0.0])
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}.get(name)
    dtype = dtype or (torch.float8_e5m2 if name == "fp8_e5m2" else torch.float8_e4m3fn)
    packed = form.encode(values, GENERATOR)
    assert torch.equal(packed.decode(), values.to(dtype).float())
    assert packed.nbytes == BYTES[name] * 4
    huge = torch.tensor([3e38, -3e38], dtype=torch.float64)
    assert form.encode(huge, GENERATOR).decode().isfinite().all()
    assert form.encode(torch.tensor([math.nan]), GENERATOR).decode().isnan().all()


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16])
def test_casts_of_half_precision_saturate_too(name, source):
    """Clamped in a half precision of its own, the largest value of another is rounded up to infinity."""
    largest = torch.finfo(source).max
    values = torch.tensor([largest, -largest, 7e4 if source == torch.bfloat16 else 6.5e4, 1.0], dtype=source)
    decoded = Cast(name).encode(values, GENERATOR).decode()
    assert decoded.dtype == source
    assert decoded.isfinite().all()
    assert (decoded * values > 0).all()
    if name != "fp8_e4m3":  # which has none
        assert Cast(name).encode(torch.tensor([math.inf], dtype=source), GENERATOR).decode().isinf().all()


def by_definition(values):
    """PAPER: X' = sign(X) [2^-b fp8(2^b |X|^a)]^(1/a), in float64 but for the cast."""
    there = values[values != 0].double().abs().log2()
    mean, highest = there.mean(), there.max()
    a = 15 / (highest - mean) if highest > mean else torch.tensor(1.0)
    b = -a * mean
    squeezed = (2**b * values.double().abs() ** a).clamp(max=2.0**15).float()
    cast = squeezed.to(torch.float8_e5m2).double()
    return values.double().sign() * (2**-b * cast) ** (1 / a)


def test_s2fp8_is_its_definition():
    values = torch.randn(20_000, generator=torch.Generator().manual_seed(3)) * 1e-4
    values[::5] = 0
    got, wanted = S2FP8().encode(values, GENERATOR).decode().double(), by_definition(values)
    near = (got - wanted).abs() <= 1e-5 * wanted.abs()
    assert near.double().mean() > 0.9995, "but where float32 falls on the other side of a rounding"
    assert torch.equal(got[::5], torch.zeros(4000, dtype=torch.float64))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1e-20, 1.0, 1e20]))
def test_s2fp8_keeps_signs_and_the_highest(seed, scale):
    values = torch.randn(500, generator=torch.Generator().manual_seed(seed)) * scale
    decoded = S2FP8().encode(values, GENERATOR).decode()
    assert (decoded * values >= 0).all()
    top = values.abs().argmax()
    assert decoded[top].item() == pytest.approx(values[top].item(), rel=1e-3)


@pytest.mark.parametrize("values", [[0.0, 0.0], [2.5], [-3.0, 3.0, 0.0], [1e-30]])
def test_s2fp8_of_equal_magnitudes(values):
    tensor = torch.tensor(values)
    decoded = S2FP8().encode(tensor, GENERATOR).decode()
    assert torch.allclose(decoded, tensor, rtol=1e-4, atol=0)


def test_s2fp8_of_values_below_float32_is_finite():
    values = torch.tensor([1e-320, -1e-60, 1.5, -0.5], dtype=torch.float64)
    decoded = S2FP8().encode(values, GENERATOR).decode()
    assert decoded.tolist() == pytest.approx([0.0, 0.0, 1.5, -0.5], rel=0.1)


def test_second_moments_of_the_largest_values_come_back_finite():
    """Their logarithm rounds to 128, and two to that power is no float32."""
    values = torch.full((2000,), torch.finfo(torch.float32).max)
    assert torch.equal(SmaQ().second_moments().encode(values, GENERATOR).decode(), values)


def test_s2fp8_refuses_what_has_no_logarithm():
    with pytest.raises(UnsupportedStateError, match="NaN"):
        S2FP8().encode(torch.tensor([1.0, math.nan]), GENERATOR)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("fp61", "did you mean 'fp16'"),
        (None, "is no format"),
        ({"name": "smaq", "inlier_bit": 3}, "did you mean 'inlier_bits'"),
        ({"name": "fp16", "box": 1}, "has no settings"),
        ({"inlier_bits": 3}, "no format None"),
    ],
)
def test_unknown_names_and_settings_are_errors(wanted, told):
    with pytest.raises(ConfigError, match=told):
        make_format(wanted)


def test_formats_are_made_by_name_settings_or_as_they_are():
    assert make_format({"name": "smaq", "box": 1.5}) == SmaQ(box=1.5)
    assert make_format(SmaQ(box=1.5)) == SmaQ(box=1.5)
    assert [make_format(name).name for name in FORMATS] == list(FORMATS)
