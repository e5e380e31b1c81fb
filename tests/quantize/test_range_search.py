"""The greedy search of a range: the same as one over the values themselves, or within its bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.quantize.even import EvenLevels
from dynaquant_core.quantize.range_search import POINTS, Points, greedy_range
from tests.quantize.data import DISTRIBUTIONS, sample

EXAMPLES = settings(max_examples=60, deadline=None)
VALUES = hnp.arrays(np.float32, st.integers(2, 300), elements=st.integers(-1000, 1000).map(float))


def squared_error(values, low, high, bins):
    """Mean squared error of the quantiser itself."""
    levels = np.linspace(low, high, bins)
    wide = values.astype(np.float64)
    return (np.abs(wide[:, None] - levels).min(axis=1) ** 2).mean()


def search_plainly(values, bins, step_bins, shrink):
    """The published loop, over the values: (low, high, error)."""
    low, high = float(values.min()), float(values.max())
    step = (high - low) / step_bins
    best = (squared_error(values, low, high, bins), low, high)
    a, b = low, high
    for _ in range(round(step_bins * shrink)):
        left, right = squared_error(values, a + step, b, bins), squared_error(values, a, b - step, bins)
        a, b = (a + step, b) if left <= right else (a, b - step)
        best = min(best, (min(left, right), a, b))
    return best[1], best[2], best[0]


@EXAMPLES
@given(VALUES.filter(lambda values: values.min() < values.max()), st.integers(2, 40))
def test_the_error_of_a_range_is_exact_up_to_the_limit(values, bins):
    low, high = float(values.min()), float(values.max())
    points = Points.of(values, low, high)
    for a, b in ((0.0, 1.0), (0.2, 0.9), (0.5, 0.55)):
        width = high - low
        expected = squared_error(values, low + a * width, low + b * width, bins) / width**2
        assert points.error(a, b, bins) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("name", ["normal", "laplace", "student", "uniform", "bimodal", "outlier"])
@pytest.mark.parametrize(("bins", "step_bins", "shrink"), [(8, 10, 0.5), (16, 25, 0.4), (64, 10, 0.1)])
def test_it_is_the_published_search(name, bins, step_bins, shrink):
    values = sample(name, 2000)
    low, high = greedy_range(values, bins, step_bins, shrink)
    *_, least = search_plainly(values, bins, step_bins, shrink)
    assert squared_error(values, low, high, bins) == pytest.approx(least, rel=1e-9)


@EXAMPLES
@given(VALUES, st.integers(2, 256), st.sampled_from([2, 10, 25, 100]), st.floats(0, 0.99))
def test_it_never_loses_to_the_full_range(values, bins, step_bins, shrink):
    low, high = greedy_range(values, bins, step_bins, shrink)
    whole = float(values.min()), float(values.max())
    assert whole[0] <= low <= high <= whole[1]
    assert high - low >= (1 - shrink) * (whole[1] - whole[0]) * (1 - 1e-9)
    assert squared_error(values, low, high, bins) <= squared_error(values, *whole, bins) * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_buckets_keep_their_bound(name):
    """6.4% more at 256 levels over half of the range, for any distribution; far less on common ones."""
    values = sample(name, POINTS + 1000)
    low, high = float(values.min()), float(values.max())
    if low == high:
        assert greedy_range(values, 8, 10, 0.5) == (low, high)
        return
    points = Points.of(values, low, high)
    assert points.middles.size <= POINTS
    for a, b, bins in ((0.0, 1.0, 256), (0.25, 0.75, 256), (0.1, 0.8, 8)):
        width = high - low
        levels = EvenLevels(low + a * width, low + b * width, bins)
        back = levels.table()[levels.codes(values)].astype(np.float64)
        exact = ((back - values) ** 2).mean() / width**2
        found = points.error(a, b, bins)
        assert exact * (1 - 1e-4) - 1e-13 <= found <= exact * 1.064 + 1e-13
        if name in {"normal", "uniform", "laplace"}:
            assert found <= exact * 1.002


def test_ends_far_apart_and_close_together():
    assert greedy_range(np.float32([-3.4e38, 0.1, 3.4e38]), 8, 10, 0.5) == pytest.approx((-3.4e38, 3.4e38))
    low, high = greedy_range(np.float32([0.0, 1e-45]), 8, 10, 0.5)
    assert (low, high) == (0.0, float(np.float32(1e-45)))
