"""GOBO's K-means: the same as one over the values, whatever they are; it stops when it should."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.quantize.kmeans import nearest_kernels
from dynaquant_core.quantize.kmeans.equal_start import GAIN, fit_equal_start, nearest_centres
from tests.quantize.data import DISTRIBUTIONS, sample
from tests.reference import even_twins as twins

EXAMPLES = settings(max_examples=60, deadline=None)
VALUES = hnp.arrays(np.float32, st.integers(1, 120), elements=st.floats(-100, 100, width=32))


def fit_plainly(values, k):
    """The same rule by distances to all centres: (centres of the least L1 norm, L1 norms)."""
    centres = np.array([part.mean() for part in np.array_split(values.astype(np.float64), k)])
    seen, norms = [], []
    while True:
        distance = np.abs(values[:, None] - centres)
        labels = distance.argmin(axis=1)
        seen.append(centres)
        norms.append(distance.min(axis=1).sum())
        if len(norms) > 1 and norms[-2] - norms[-1] < GAIN * norms[-2]:
            return seen[int(np.argmin(norms))], norms
        counts = np.bincount(labels, minlength=k)
        sums = np.bincount(labels, values, minlength=k)
        centres = np.where(counts > 0, sums / np.maximum(counts, 1), centres)


@pytest.mark.parametrize("name", ["normal", "laplace", "uniform", "bimodal", "lognormal"])
@pytest.mark.parametrize("k", [2, 8, 32])
def test_it_is_the_rule(name, k):
    values = np.sort(sample(name, 64 * 40))
    found = fit_equal_start(values, k)
    centres, norms = fit_plainly(values, k)
    own = np.abs(values[:, None] - found).min(axis=1).sum()
    assert own == pytest.approx(min(norms), rel=1e-4)
    assert own < norms[0]
    np.testing.assert_allclose(found, centres, rtol=1e-3, atol=1e-4 * np.abs(values).max())


@EXAMPLES
@given(VALUES, st.integers(1, 256))
def test_centres_are_distinct_and_among_the_values(values, k):
    values = np.sort(values)
    centres = fit_equal_start(values, k)
    assert centres.dtype == np.float32
    assert 1 <= centres.size <= min(k, np.unique(values).size if k >= values.size else k)
    assert (np.diff(centres) > 0).all()
    assert values[0] <= centres[0]
    assert centres[-1] <= values[-1]


@EXAMPLES
@given(VALUES, VALUES)
def test_nearest(values, centres):
    centres = np.unique(centres)
    codes = nearest_centres(values, centres)
    wide = values.astype(np.float64)
    distance = np.abs(wide[:, None] - centres.astype(np.float64))
    np.testing.assert_allclose(
        distance[np.arange(values.size), codes], distance.min(axis=1), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_nearest_among_many(name):
    values = sample(name, 5000)
    centres = fit_equal_start(np.sort(values), 256)
    codes = nearest_centres(values, centres)
    wide = centres.astype(np.float64)
    expected = np.searchsorted(((wide[1:] + wide[:-1]) / 2).astype(np.float32), values)
    np.testing.assert_array_equal(codes, expected)


@EXAMPLES
@given(VALUES, VALUES, st.floats(-50, 50), st.floats(0, 3))
def test_kernels_match_their_twins(values, bounds, low, inverse):
    bounds = np.append(np.sort(bounds), np.float32(np.inf))
    sides = []
    for module in (nearest_kernels, twins):
        cells, codes = np.empty(bounds.size - 1, np.int64), np.empty(values.size, np.uint8)
        module.cells_of(bounds[:-1], low, inverse, 99.0, cells)
        starts = np.searchsorted(cells, np.arange(100)).astype(np.uint8)
        module.count_below(values, low, inverse, starts, bounds, codes)
        sides.append((cells, codes))
    for mine, other in zip(*sides, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_it_stops_at_once_when_it_is_told_to():
    values = np.sort(sample("laplace", 4096))
    start = fit_equal_start(values, 8, iterations=0)
    np.testing.assert_array_equal(
        start, values.reshape(8, -1).mean(axis=1, dtype=np.float64).astype(np.float32)
    )
    np.testing.assert_array_equal(fit_equal_start(values, 8, go_on=lambda: False), start)
    asked = []
    one = fit_equal_start(values, 8, go_on=lambda: not asked.append(0) and len(asked) < 2)
    np.testing.assert_array_equal(one, fit_equal_start(values, 8, iterations=1))
    assert (one != start).any()


def test_no_values_have_no_centres():
    assert fit_equal_start(np.empty(0, np.float32), 8).size == 0


def test_giants_beside_small_values_leave_finite_centres_in_their_runs():
    values = np.sort(np.float32([-3e38] * 50 + [1e-3, 2e-3, 3e-3] * 30 + [3e38] * 50))
    centres = fit_equal_start(values, 16)
    assert np.isfinite(centres).all()
    assert ((centres >= values[0]) & (centres <= values[-1])).all()
