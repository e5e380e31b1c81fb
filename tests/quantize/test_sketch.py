"""Buckets and sketches: the guarantee on every quantile, and the laws of merging."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.errors import ConfigError, UnsupportedStateError
from dynaquant_core.quantize.buckets import BitBuckets, LogBuckets, bit_tables, log_tables
from dynaquant_core.quantize.sketch import Sketch, SparseSketch
from tests.quantize.data import DISTRIBUTIONS, sample

SCHEMES = [BitBuckets(m) for m in range(4, 11)] + [LogBuckets(0.01), LogBuckets(0.001), LogBuckets(0.1)]
SHARES = [0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0]
NORMALS = st.floats(min_value=2.0**-126, max_value=float(np.finfo(np.float32).max), width=32)


def label(scheme):
    return f"{type(scheme).__name__}-{scheme.relative_error:.4f}"


@pytest.mark.parametrize("scheme", SCHEMES, ids=label)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_quantile_is_within_the_relative_error(name, scheme):
    for size in (1, 2, 10, 1000, 100_000):
        values = sample(name, size)
        sketch = Sketch.of(torch.from_numpy(values), scheme)
        assert sketch.total == size
        for share in SHARES:
            exact = float(np.quantile(values.astype(np.float64), share, method="lower"))
            assert abs(sketch.quantile(share) - exact) <= abs(exact) * scheme.relative_error * (1 + 1e-12)


@pytest.mark.parametrize("name", ["normal", "cauchy", "sparse"])
def test_magnitude_quantiles_keep_the_guarantee(name):
    values = sample(name, 5000)
    signed = Sketch.of(torch.from_numpy(values), BitBuckets(6))
    direct = Sketch.of(torch.from_numpy(values), BitBuckets(6, signed=False))
    assert (signed.magnitude().counts == direct.counts).all()
    for share in SHARES:
        exact = float(np.quantile(np.abs(values).astype(np.float64), share, method="lower"))
        assert abs(direct.quantile(share) - exact) <= exact / 129 * (1 + 1e-12)


@pytest.mark.parametrize("mantissa_bits", range(4, 11))
def test_bit_buckets_state_the_papers_bound(mantissa_bits):
    assert BitBuckets(mantissa_bits).relative_error == 1 / (2 ** (mantissa_bits + 1) + 1)
    assert BitBuckets(6).relative_error == pytest.approx(0.00775, abs=5e-6)


@pytest.mark.parametrize("scheme", SCHEMES, ids=label)
def test_tables_are_the_same_where_subnormal_numbers_are_flushed(scheme):
    """Values that were no numbers made codes of the wrong centres, at twice the error."""
    usual, values, limits = scheme.edges.copy(), scheme.values.copy(), scheme.limits.view(np.uint32).copy()
    assert (np.diff(values) > 0).all()
    bit_tables.cache_clear()
    log_tables.cache_clear()
    try:
        torch.set_flush_denormal(True)
        flushed = scheme.edges.view(np.uint64), scheme.values.view(np.uint64), scheme.limits.view(np.uint32)
    finally:
        torch.set_flush_denormal(False)
        bit_tables.cache_clear()
        log_tables.cache_clear()
    for found, expected in zip(flushed, (usual.view(np.uint64), values.view(np.uint64), limits), strict=True):
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(NORMALS, NORMALS.map(lambda x: -x)), min_size=1), st.sampled_from(SCHEMES))
def test_bucket_holds_its_number_and_its_value_is_near(numbers, scheme):
    numbers = np.array(numbers, dtype=np.float32)
    index = scheme.bucket_of(numbers)
    wide = numbers.astype(np.float64)
    assert (scheme.edges[index] <= wide).all()
    assert (wide <= scheme.edges[index + 1]).all()
    assert (np.abs(scheme.values[index] - wide) <= np.abs(wide) * scheme.relative_error * (1 + 1e-12)).all()
    zero = scheme.magnitudes - 1 if scheme.signed else 0
    limits = scheme.limits[np.abs(index - zero)]
    assert (np.abs(numbers) <= limits).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=label)
def test_tables_ascend_and_mirror(scheme):
    assert (np.diff(scheme.values) > 0).all()
    assert (np.diff(scheme.edges) > 0).all()
    assert (scheme.values == -scheme.values[::-1]).all()
    unsigned = scheme.unsigned()
    assert (unsigned.values == scheme.values[scheme.magnitudes - 1 :]).all()
    assert unsigned.size == unsigned.magnitudes == scheme.magnitudes
    assert scheme.size == scheme.edges.size - 1 == 2 * scheme.magnitudes - 1


def test_log_buckets_have_the_published_key():
    scheme, gamma = LogBuckets(0.01, signed=False), 1.01 / 0.99
    numbers = np.exp2(np.linspace(-100, 100, 999)).astype(np.float32)
    keys = np.ceil(np.log(numbers.astype(np.float64)) / np.log(gamma))
    steps = scheme.bucket_of(numbers) - keys
    assert (steps == steps[0]).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=label)
def test_zero_has_a_bucket_of_value_zero(scheme):
    tiny = np.array([0.0, -0.0, 2.0**-149, -(2.0**-149)], dtype=np.float32)
    assert (scheme.values[scheme.bucket_of(tiny)] == 0.0).all()


@pytest.mark.parametrize("scheme", SCHEMES[:3] + SCHEMES[-2:], ids=label)
def test_subnormal_and_huge_numbers_are_counted(scheme):
    numbers = np.array([1e-40, -3e-45, 3.4028235e38, -3.4028235e38, 2.0**-126], dtype=np.float32)
    sketch = Sketch.of(torch.from_numpy(numbers), scheme)
    assert sketch.total == 5
    assert (sketch.counts == np.bincount(scheme.bucket_of(numbers), minlength=scheme.size)).all()
    assert sketch.quantile(1.0) == pytest.approx(3.4028235e38, rel=2 * scheme.relative_error)


@settings(max_examples=30, deadline=None)
@given(st.lists(hnp.arrays(np.float32, st.integers(0, 50), elements=NORMALS), min_size=3, max_size=3))
def test_merging_is_commutative_associative_and_equals_concatenation(parts):
    scheme = BitBuckets(6)
    first, second, third = (Sketch.of(torch.from_numpy(part), scheme) for part in parts)
    together = Sketch.of(torch.from_numpy(np.concatenate(parts)), scheme).counts
    assert ((first + second).counts == (second + first).counts).all()
    assert (((first + second) + third).counts == (first + (second + third)).counts).all()
    assert ((first + second + third).counts == together).all()
    assert ((first + Sketch.empty(scheme)).counts == first.counts).all()


@given(hnp.arrays(np.float32, st.integers(0, 300), elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_a_sketch_that_is_kept_sparse_comes_back_whole(values):
    sketch = Sketch.of(torch.from_numpy(values), BitBuckets(6))
    sparse = SparseSketch.of(sketch)
    assert sparse.rows.size <= values.size
    assert (sparse.dense().counts == sketch.counts).all()
    assert sparse.dense().buckets == sketch.buckets
    energy = sketch.counts * np.arange(0.5, sketch.counts.size)
    assert (sparse.spread(energy[sparse.rows]) == energy).all()


def test_only_like_sketches_merge():
    with pytest.raises(ConfigError, match="same buckets"):
        Sketch.empty(BitBuckets(6)) + Sketch.empty(BitBuckets(7))
    assert BitBuckets(6) == BitBuckets(6) != BitBuckets(6, signed=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("scheme", [BitBuckets(6), BitBuckets(10), LogBuckets()], ids=label)
def test_any_float_dtype_counts_like_its_float32(dtype, scheme):
    tensor = torch.from_numpy(sample("normal", 40_000)).to(dtype)
    assert (Sketch.of(tensor, scheme).counts == Sketch.of(tensor.to(torch.float32), scheme).counts).all()


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 16_383, 16_384, 131_073, 300_001])
@pytest.mark.parametrize("offset", [0, 1])
def test_any_length_and_alignment_is_counted_whole(size, offset):
    values = torch.from_numpy(sample("normal", size + 1))[offset : offset + size]
    scheme = BitBuckets(6)
    expected = np.bincount(scheme.bucket_of(values.numpy()), minlength=scheme.size)
    assert (Sketch.of(values, scheme).counts == expected).all()


def test_non_contiguous_tensors_and_parameters_are_read_as_they_stand():
    matrix = torch.from_numpy(sample("normal", 40_000)).view(100, 400)
    scheme = BitBuckets(6)
    whole = Sketch.of(matrix, scheme).counts
    assert (Sketch.of(matrix.t(), scheme).counts == whole).all()
    assert (Sketch.of(torch.nn.Parameter(matrix), scheme).counts == whole).all()
    assert (
        Sketch.of(matrix[:, ::2], scheme).counts == Sketch.of(matrix[:, ::2].clone(), scheme).counts
    ).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("scheme", [BitBuckets(6), BitBuckets(6, signed=False), LogBuckets()], ids=label)
@pytest.mark.parametrize("size", [10, 20_000])
def test_non_finite_values_are_refused(bad, scheme, size):
    values = torch.zeros(size)
    values[7] = bad
    with pytest.raises(UnsupportedStateError, match="1 of"):
        Sketch.of(values, scheme)


def test_integers_are_refused():
    with pytest.raises(UnsupportedStateError, match="int64"):
        Sketch.of(torch.arange(4), BitBuckets(6))


@pytest.mark.parametrize("bad", [lambda: BitBuckets(3), lambda: BitBuckets(11), lambda: LogBuckets(0.5)])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ConfigError):
        bad()


def test_no_quantile_of_nothing_or_beyond():
    with pytest.raises(ConfigError, match="0 values"):
        Sketch.empty(BitBuckets(6)).quantile(0.5)
    with pytest.raises(ConfigError):
        Sketch.of(torch.ones(3), BitBuckets(6)).quantile(1.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", [BitBuckets(6), LogBuckets(0.01)])
def test_means_are_those_of_what_lies_in_each_bucket(dtype, scheme):
    values = torch.randn(4000, generator=torch.Generator().manual_seed(0)).to(dtype)
    values[:10] = 0.0
    sparse = SparseSketch.of(Sketch.of(values, scheme))
    exact = values.double().numpy()
    where = scheme.bucket_of(exact)
    expected = [exact[where == row].mean() for row in sparse.rows]
    found = sparse.moments(values)
    np.testing.assert_allclose(found.means, expected, rtol=1e-12)
    away = [np.abs(exact[where == row] - exact[where == row].mean()) for row in sparse.rows]
    np.testing.assert_allclose(found.variances, [np.mean(each**2) for each in away], rtol=1e-9, atol=1e-30)
    np.testing.assert_allclose(found.deviations, [each.mean() for each in away], rtol=1e-9, atol=1e-15)
    assert (np.diff(sparse.moments(values[:100]).means) > 0).all()
