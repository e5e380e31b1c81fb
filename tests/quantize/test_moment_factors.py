"""Moments as rows and columns: what is exact, what keeps its sign, what stays positive."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.errors import CorruptFileError
from dynaquant_core.quantize import ternary as ternary_module
from dynaquant_core.quantize.factors import (
    decode_product,
    encode_product,
    factor_count,
    factor_scale_count,
    matrix_shape,
)
from dynaquant_core.quantize.ternary import FEW, MANY, decode_ternary, encode_ternary

SHAPES = st.sampled_from([(1, 1), (7, 3), (300, 2), (5,), (4, 3, 2), (1, 16, 9), (2, 3, 3, 3)])


def arrays(low):
    elements = st.floats(min_value=low, width=32, allow_nan=False, allow_infinity=False)
    return SHAPES.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=elements))


def product(values):
    codes, scales = encode_product(values)
    out = torch.full_like(values, float("nan"))
    decode_product(codes, scales, out)
    return out


def ternary(values, sieve=MANY):
    signs, codes, scales = encode_ternary(values, sieve)
    out = torch.full_like(values, float("nan"))
    decode_ternary(signs, codes, scales, out)
    return signs, out


@settings(max_examples=120, deadline=None)
@given(arrays(0.0))
def test_a_product_is_positive_where_values_were_and_finite(values):
    exact = torch.from_numpy(values)
    found = product(exact)
    assert found.isfinite().all()
    assert (found[exact > 0] > 0).all()
    rows, columns = (exact.reshape(matrix_shape(exact.shape)).sum(dim=dim) == 0 for dim in (1, 0))
    grid = found.reshape(matrix_shape(exact.shape))
    assert (grid[rows] == 0).all()
    assert (grid[:, columns] == 0).all()


def test_a_product_comes_back_within_its_two_codes():
    generator = torch.Generator().manual_seed(0)
    rows, columns = (torch.exp(3 * torch.randn(count, generator=generator)) for count in (300, 200))
    exact = rows[:, None] * columns
    assert (product(exact) / exact - 1).abs().max() < 0.14


def test_the_mean_of_each_row_and_column_is_kept():
    exact = torch.rand(200, 300, generator=torch.Generator().manual_seed(1)).square()
    found = product(exact)
    for dim in (0, 1):
        assert (found.mean(dim) / exact.mean(dim) - 1).abs().max() < 0.11


@settings(max_examples=120, deadline=None)
@given(arrays(None), st.sampled_from([MANY, FEW]))
def test_signs_are_kept_or_zero_and_something_is_kept_of_each_row(values, sieve):
    exact = torch.from_numpy(values)
    signs, found = ternary(exact, sieve)
    assert found.isfinite().all()
    assert (found.sign() * exact.sign() >= 0).all()
    assert set(signs.tolist()) <= {0, 1, 2}
    grid, got = (tensor.reshape(matrix_shape(exact.shape)) for tensor in (exact, found))
    assert ((got != 0).any(dim=1) == (grid != 0).any(dim=1)).all()


@pytest.mark.parametrize(("sieve", "noise", "kept"), [(MANY, 0.7, 0.3), (FEW, 12, 0.05)])
def test_ternary_loses_no_movement(sieve, noise, kept):
    """What comes back has the tensor itself as its part along the tensor; the rest is noise, and bounded."""
    exact = torch.randn(64, 96, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    exact *= torch.exp(torch.linspace(-3, 3, 64, dtype=torch.float64))[:, None]
    found = ternary(exact.float(), sieve)[1].double()
    energy = exact.square().sum()
    assert abs(float((found * exact).sum() / energy) - 1) < 0.04
    assert (found - exact).square().sum() < noise * energy
    assert 0 < (found != 0).double().mean() < kept


def _kinds():
    generator = torch.Generator().manual_seed(6)

    def bell(*shape):
        return torch.randn(*shape, generator=generator)

    block = 1e-3 * bell(200, 160)
    block[:32, :32] += bell(32, 32).sign()
    spikes = 1e-3 * bell(200, 160)
    spikes[3, 5], spikes[7, 9] = 100.0, -80.0
    strong = (2 * bell(200, 1)).exp() * (2 * bell(1, 160)).exp()
    return {
        "a product": bell(200, 1) @ bell(1, 160),
        "nearly a product": bell(200, 1) @ bell(1, 160) + 0.05 * bell(200, 160),
        "two products": bell(200, 2) @ bell(2, 160),
        "a block": block,
        "spikes": spikes,
        "strong rows and columns": strong * bell(200, 160),
        "few elements": bell(200, 160) * (torch.rand(200, 160, generator=generator) < 0.02),
        "a diagonal": torch.diag(bell(160)),
        "heavy tails": bell(200, 160) / bell(200, 160),
        "equal": torch.ones(200, 160),
    }


@pytest.mark.parametrize("sample", [ternary_module.SAMPLE, 1 << 10], ids=["whole", "sampled first"])
@pytest.mark.parametrize(("sieve", "noise"), [(MANY, 1.5), (FEW, 15.0)])
@pytest.mark.parametrize("kind", _kinds())
def test_ternary_loses_no_movement_where_little_is_large_against_the_product(
    kind, sieve, noise, sample, monkeypatch
):
    monkeypatch.setattr(ternary_module, "SAMPLE", sample)
    exact = _kinds()[kind].double()
    found = ternary(exact.float(), sieve)[1].double()
    energy = exact.square().sum()
    assert abs(float((found * exact).sum() / energy) - 1) < 0.05
    assert (found - exact).square().sum() < noise * energy


def test_ternary_rows_are_in_proportion():
    exact = torch.randn(64, 960, generator=torch.Generator().manual_seed(5))
    exact *= torch.exp(torch.linspace(-3, 3, 64))[:, None]
    found = ternary(exact)[1]
    along = (found * exact).sum(dim=1) / exact.square().sum(dim=1)
    assert along.max() / along.min() < 1.25


def test_equal_magnitudes_lose_nothing_but_the_code():
    exact = torch.tensor([[0.5, -0.5], [-2.0, 2.0]])
    _, found = ternary(exact)
    assert (found / exact - 1).abs().max() < 0.11


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_stay_positive_and_finite(dtype):
    info = torch.finfo(dtype)
    values = torch.rand(40, 50, generator=torch.Generator().manual_seed(3)).to(dtype)
    values[0] = info.smallest_normal * info.eps
    values[1] = min(info.max, 3.4e38)
    found = product(values)
    assert found.dtype == dtype
    assert (found > 0).all()
    assert found.isfinite().all()
    assert ternary(-values)[1].isfinite().all()


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch):
    values = torch.randn(700, 900, generator=torch.Generator().manual_seed(4))
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("DYNAQUANT_THREADS", threads)
        found.append([*encode_ternary(values), *encode_product(values.abs())])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("shape", "matrix"),
    [
        ((), (1, 1)),
        ((5,), (5, 1)),
        ((64, 32, 3, 3), (64, 288)),
        ((1, 196, 192), (196, 192)),
        ((0, 3), (0, 3)),
    ],
)
def test_a_tensor_is_seen_as_the_squarest_matrix(shape, matrix):
    assert matrix_shape(shape) == matrix
    assert factor_count(shape) == sum(matrix)
    assert factor_scale_count(shape) == sum(-(-size // 256) for size in matrix)


def test_scales_that_no_encoder_writes_are_refused():
    codes, scales = encode_product(torch.ones(4, 4))
    with pytest.raises(CorruptFileError, match="scale"):
        decode_product(codes, np.full_like(scales, 32767), torch.empty(4, 4))
