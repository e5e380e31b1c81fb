"""Pruning by medians and means, and the few values that are left."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dynaquant_core.quantize.survivors import above_mean, above_median, centre_codes, centre_values

FLOATS = arrays(np.float32, st.integers(0, 300), elements=st.floats(-(2.0**100), 2.0**100, width=32))


@settings(max_examples=80, deadline=None)
@given(values=FLOATS, data=st.data(), count=st.sampled_from([3, 15]))
def test_codes_and_centres(values, data, count):
    kept = data.draw(arrays(np.bool_, values.size))
    codes, centres = centre_codes(values, kept, count)
    assert np.array_equal(codes > 0, kept)
    assert centres.shape == (count,)
    assert np.isfinite(centres).all()
    found = centre_values(codes, centres)
    assert (found[~kept] == 0).all()
    for code in np.unique(codes[kept]):
        members = values[codes == code].astype(np.float64)
        assert centres[code - 1] == pytest.approx(
            members.mean(), rel=1e-5, abs=1e-6 * np.abs(members).max() + 1e-44
        )


def test_few_values_are_their_own_centres():
    values = np.float32([3, -1, 3, 0.5, 0, -1])
    codes, centres = centre_codes(values, values != 0, 15)
    assert centre_values(codes, centres).tolist() == values.tolist()
    assert centres.tolist() == [-1.0, 0.5, 3.0, *[0.0] * 12]


def test_centres_are_close_to_the_best_there_are():
    """Against Lloyd's algorithm on the true values, begun from ours: nothing to gain."""
    values = np.random.default_rng(0).laplace(size=20_000).astype(np.float32)
    codes, centres = centre_codes(values, np.ones(values.size, bool), 15)
    loss = float(((centre_values(codes, centres) - values) ** 2).mean())
    for _ in range(50):
        codes = np.abs(values[:, None] - centres).argmin(1)
        sums = np.bincount(codes, values, 15)
        centres = (sums / np.bincount(codes, minlength=15)).astype(np.float32)
    assert loss <= 1.01 * float(((centres[codes] - values) ** 2).mean())


@settings(max_examples=60, deadline=None)
@given(values=FLOATS, factor=st.floats(0, 5))
def test_thresholds(values, factor):
    sizes = np.abs(values)
    for mask, middle in (
        (above_median(values, factor), np.median(sizes) if values.size else 0.0),
        (above_mean(values, factor), sizes.astype(np.float64).mean() if values.size else 0.0),
    ):
        assert not mask[values == 0].any()
        assert (sizes[mask] >= np.float32(0.999 * factor * middle)).all()
        assert (sizes[~mask] <= 1.001 * factor * middle).all()


def test_an_unmoved_half_does_not_stop_an_endless_factor():
    """0 medians of infinite factor: where most values are zero, all others are kept."""
    values = np.float32([0, 0, 0, 1, -2])
    assert above_median(values, float("inf")).tolist() == [False, False, False, True, True]
