"""Code look-up: nearest centre up to a bucket's width, levels in order, error near the exact one's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.errors import ConfigError
from dynaquant_core.quantize import seam
from dynaquant_core.quantize.buckets import BitBuckets, LogBuckets
from dynaquant_core.quantize.codebook import lookup, table
from dynaquant_core.quantize.cut import NO_CUT
from dynaquant_core.quantize.kmeans import bucket_weights, solve
from dynaquant_core.quantize.sketch import Sketch
from tests.quantize.data import sample

CENTRES = hnp.arrays(
    np.float32, st.integers(1, 64), elements=st.floats(-(2.0**60), 2.0**60, width=32), unique=True
).map(np.sort)


@settings(max_examples=60, deadline=None)
@given(CENTRES, st.sampled_from([BitBuckets(6), LogBuckets()]))
def test_every_bucket_goes_to_the_centre_nearest_to_its_value(centres, scheme):
    levels = lookup(centres, scheme)
    wide = centres.astype(np.float64)
    distance = np.abs(scheme.values[:, None] - wide[None, :])
    chosen = distance[np.arange(scheme.size), levels.astype(int) - 2]
    nearest = distance.min(axis=1)
    assert (chosen <= nearest + 1e-9 * np.abs(scheme.values)).all()
    assert (np.diff(levels.astype(int)) >= 0).all()


@pytest.mark.parametrize("name", ["normal", "laplace", "uniform", "student"])
@pytest.mark.parametrize("k", [2, 7, 16, 33, 64])
def test_snapping_boundaries_to_buckets_costs_next_to_nothing(name, k):
    values = torch.from_numpy(sample(name, 50_000))
    scheme = BitBuckets(6)
    counts = Sketch.of(values, scheme).counts
    used = np.flatnonzero(counts)
    weights = bucket_weights(scheme.values[used], counts[used], 0.5)
    centres = solve(scheme.values[used], weights, k).centres(k).astype(np.float32)
    codes, protected = seam.assign(values, None, NO_CUT, lookup(centres, scheme), scheme)
    out = torch.empty_like(values)
    seam.gather(codes, table(centres), protected, out)
    exact = (values[:, None] - torch.from_numpy(centres)[None, :]).abs().amin(dim=1)
    assert ((out - values) ** 2).sum() <= (1.0005 if k <= 16 else 1.002) * (exact**2).sum()


def test_a_table_has_two_levels_before_the_centres():
    assert table(np.array([-1.5, 2.5])).tolist() == [0.0, 0.0, -1.5, 2.5]
    assert table(np.zeros(0)).size == 2
    assert table(np.arange(64.0)).dtype == np.float32


def test_without_centres_everything_is_level_zero():
    assert not lookup(np.zeros(0, dtype=np.float32), BitBuckets(6)).any()


@pytest.mark.parametrize(
    "centres", [[1.0, 0.0], [0.0, np.nan], [0.0, np.inf], list(range(65)), [[0.0, 1.0]]], ids=str
)
def test_bad_centres_are_refused(centres):
    for use in (table, lambda array: lookup(array, BitBuckets(6))):
        with pytest.raises(ConfigError, match="64 finite centres"):
            use(np.array(centres, dtype=np.float64))


def test_a_bucket_goes_where_what_stands_for_it_is_nearest():
    """Values at the tops of neighbouring buckets: the upper one's middle is nearer to the lower value."""
    buckets = BitBuckets(6)
    pair = np.nextafter(np.float32([1 + 2**-6, 1 + 2**-5]), np.float32(0))
    stand = buckets.values.copy()
    stand[buckets.bucket_of(pair)] = pair
    assert lookup(pair, buckets, stand)[buckets.bucket_of(pair)].tolist() == [2, 3]
