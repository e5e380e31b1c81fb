"""K-means: exactness of the dynamic programme, Lloyd against it, and the paper's two bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.errors import ConfigError
from dynaquant_core.quantize.buckets import BitBuckets
from dynaquant_core.quantize.kmeans import bucket_weights, lloyd, solve
from dynaquant_core.quantize.kmeans.polish import polish
from dynaquant_core.quantize.sketch import Sketch
from tests.quantize.data import DISTRIBUTIONS, sample
from tests.reference import quantize_twins as twins

POINTS = st.integers(1, 9).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.float64, n, elements=st.floats(-100, 100), unique=True).map(np.sort),
        hnp.arrays(np.float64, n, elements=st.floats(1e-3, 10)),
    )
)


def loss(values, weights, centres, power=2):
    """Sum of w |x - nearest centre|^power, every centre tried."""
    distance = np.abs(values[:, None] - np.asarray(centres)[None, :]).min(axis=1)
    return float(np.dot(weights, distance**power))


def bucketed(name, size=20_000, sigma=0.5):
    """(values, weights) of a sketch's used buckets."""
    scheme = BitBuckets(6)
    counts = Sketch.of(torch.from_numpy(sample(name, size)), scheme).counts
    used = np.flatnonzero(counts)
    return scheme.values[used], bucket_weights(scheme.values[used], counts[used], sigma)


@settings(max_examples=120, deadline=None)
@given(POINTS, st.integers(1, 9))
def test_dynamic_programme_equals_brute_force(points, k):
    values, weights = points
    best, _ = twins.best_partition(values, weights, k)
    solutions = solve(values, weights, k)
    scale = float(np.dot(weights, values**2)) + 1e-300
    assert solutions.loss(k) <= best + 1e-12 * scale
    assert solutions.loss(k) == pytest.approx(loss(values, weights, solutions.centres(k)), abs=1e-12 * scale)


@pytest.mark.parametrize("seed", range(3))
def test_every_k_from_2_to_64_is_optimal(seed):
    generator = np.random.default_rng(seed)
    size = 140
    values, weights = np.sort(generator.standard_t(3, size)), generator.random(size) ** 3
    solutions = solve(values, weights, 64)
    sums = [np.concatenate(([0.0], np.cumsum(weights * values**power))) for power in range(3)]
    least = sums[2][1:] - sums[1][1:] ** 2 / sums[0][1:]
    scale = float(np.dot(weights, values**2))
    for k in range(2, 65):
        least, _ = twins.best_splits(k - 1, *sums, least)
        assert solutions.loss(k) == pytest.approx(least[-1], abs=1e-12 * scale)
        assert solutions.centres(k).size == k
        assert (np.diff(solutions.centres(k)) > 0).all()
        assert (solve(values, weights, k).centres(k) == solutions.centres(k)).all()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_lloyd_never_beats_the_dynamic_programme(name):
    values, weights = bucketed(name)
    solutions = solve(values, weights, 64)
    for k in (2, 3, 5, 8, 13, 32, 64):
        for power in (1, 2):
            centres = lloyd.fit(values, weights, k, seed=k, power=power)
            scale = float(np.dot(weights, values**2))
            assert loss(values, weights, centres) >= solutions.loss(k) - 1e-12 * scale
            assert centres.size <= k
            assert (np.diff(centres) > 0).all()


def test_more_centres_never_cost_more():
    values, weights = bucketed("laplace")
    losses = [solve(values, weights, 64).loss(k) for k in range(1, 65)]
    assert (np.diff(losses) <= 1e-12 * losses[0]).all()


def test_lloyd_lowers_its_own_start_and_repeats_itself():
    values, weights = bucketed("normal")
    start = lloyd.seed_centres(values, weights, 16, np.random.default_rng(4))
    centres = lloyd.fit(values, weights, 16, seed=4)
    assert loss(values, weights, centres) < loss(values, weights, start)
    assert (centres == lloyd.fit(values, weights, 16, seed=4)).all()
    assert not np.array_equal(centres, lloyd.fit(values, weights, 16, seed=5))
    assert (lloyd.fit(values, weights, 16, seed=4, iterations=0) == start).all()


# -- the paper's bounds (Proposition 4.1, A.2) -----------------------------------------------------

UNIT = hnp.arrays(np.float32, st.integers(1, 60), elements=st.floats(0, 1, width=32))


def approximated(data):
    """(data, bucket values, largest distance alpha), all in [0, 1]."""
    scheme = BitBuckets(6)
    near = np.minimum(scheme.values[scheme.bucket_of(data)], 1.0)
    wide = data.astype(np.float64)
    return wide, near, float(np.abs(wide - near).max())


@settings(max_examples=150, deadline=None)
@given(UNIT, hnp.arrays(np.float64, st.integers(1, 6), elements=st.floats(-0.5, 1.5)))
def test_proposition_4_1_for_any_centres(data, centres):
    exact, near, alpha = approximated(data)
    assert alpha <= 1 / 129
    ones = np.full(data.size, 1 / data.size)
    difference = loss(exact, ones, centres, power=1) - loss(near, ones, centres, power=1)
    assert abs(difference) <= alpha + 1e-12


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 8), elements=st.floats(0, 1, width=32)), st.integers(1, 4))
def test_proposition_4_1_for_the_best_centres(data, k):
    exact, near, alpha = approximated(np.sort(data))
    ones = np.full(data.size, 1 / data.size)
    best, _ = twins.best_partition(exact, ones, k, power=1)
    best_near, _ = twins.best_partition(near, ones, k, power=1)
    assert abs(best - best_near) <= alpha + 1e-12


@pytest.mark.parametrize("name", ["uniform", "positive", "lognormal", "bimodal", "sparse"])
@pytest.mark.parametrize("k", [2, 4, 8, 16])
def test_k_means_plus_plus_bound_in_expectation(name, k):
    data = np.abs(sample(name, 4000))
    data /= data.max()
    exact, near, alpha = approximated(data)
    values, counts = np.unique(near, return_counts=True)
    shares = bucket_weights(values, counts, 1.0)
    shares = shares / shares.sum()
    sorted_data = np.sort(exact)
    optimum = solve(sorted_data, np.full(data.size, 1 / data.size), k).loss(k)
    starts = [lloyd.seed_centres(values, shares, k, np.random.default_rng(seed)) for seed in range(100)]
    expected = np.mean([loss(values, shares, centres) for centres in starts])
    assert expected <= 16 * (math.log(k) + 2) * (optimum + alpha**2)


# -- edges -----------------------------------------------------------------------------------------


def weighted_loss(values, weights, centres):
    return float(np.dot(weights, np.min((values[:, None] - centres[None]) ** 2, axis=1)))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_polishing_never_raises_the_loss_and_keeps_the_order(seed, k):
    generator = np.random.default_rng(seed)
    values = np.sort(generator.normal(size=generator.integers(1, 200)))
    weights = generator.random(values.size) * generator.integers(0, 2, values.size)
    weights[0] = 1.0
    start = np.sort(generator.normal(scale=2.0, size=k))
    polished = polish(values, weights, start)
    assert polished.shape == start.shape
    assert (np.diff(polished) >= 0).all()
    before, after = (weighted_loss(values, weights, centres) for centres in (start, polished))
    assert after <= before * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_polishing_the_centres_of_earlier_weights_comes_near_a_fresh_fit(name):
    sketch = Sketch.of(torch.from_numpy(sample(name, 40_000, seed=5)), BitBuckets(6))
    used = np.flatnonzero(sketch.counts)
    values, weights = (
        sketch.buckets.values[used],
        bucket_weights(sketch.buckets.values[used], sketch.counts[used], 0.3),
    )
    fresh = solve(values, weights, 16)
    earlier = fresh.centres(16) * 1.01
    assert weighted_loss(values, weights, polish(values, weights, earlier)) <= 1.1 * fresh.loss(16) + 1e-9


def test_points_without_weight_do_not_count():
    values, weights = np.array([-5.0, 0.0, 1.0, 9.0]), np.array([0.0, 1.0, 1.0, 0.0])
    assert solve(values, weights, 2).centres(2).tolist() == [0.0, 1.0]
    assert lloyd.fit(values, weights, 2).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_fewer_points_than_clusters_give_fewer_centres(count):
    values = np.arange(count, dtype=np.float64)
    solutions = solve(values, np.ones(count), 16)
    assert solutions.centres(16).tolist() == values.tolist()
    assert solutions.loss(16) == 0.0
    assert lloyd.fit(values, np.ones(count), 16).tolist() == values.tolist()


@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1e20, 3e38])
def test_clusters_do_not_depend_on_scale(scale):
    values, weights = bucketed("normal")
    here, there = solve(values, weights, 16).centres(16), solve(values * scale, weights, 16).centres(16)
    np.testing.assert_allclose(there, here * scale, rtol=1e-6)
    np.testing.assert_allclose(lloyd.fit(values * scale, weights, 8), lloyd.fit(values, weights, 8) * scale)


@pytest.mark.parametrize("fit", [lambda v, w: solve(v, w, 2), lambda v, w: lloyd.fit(v, w, 2)])
@pytest.mark.parametrize(
    ("values", "weights"),
    [([1.0, 0.0], [1.0, 1.0]), ([0.0, math.nan], [1.0, 1.0]), ([0.0, 1.0], [1.0, -1.0]), ([0.0, 1.0], [1.0])],
)
def test_invalid_points_are_refused(fit, values, weights):
    with pytest.raises(ConfigError, match="kmeans"):
        fit(np.array(values), np.array(weights))


def test_invalid_numbers_of_clusters_are_refused():
    points, ones = np.arange(5.0), np.ones(5)
    for bad in (
        lambda: solve(points, ones, 0),
        lambda: solve(points, ones, 3).centres(4),
        lambda: solve(points, ones, 3).loss(0),
        lambda: lloyd.fit(points, ones, 0),
        lambda: lloyd.fit(points, ones, 2, power=3),
    ):
        with pytest.raises(ConfigError):
            bad()


# -- weights of buckets ----------------------------------------------------------------------------


def test_sigma_weighs_the_count():
    values, counts = np.array([-4.0, 1.0, 2.0]), np.array([1, 10, 5])
    assert bucket_weights(values, counts, 1.0).tolist() == [0.1, 1.0, 0.5]
    assert bucket_weights(values, counts, 0.0).tolist() == [1.0, 0.25, 0.5]
    np.testing.assert_allclose(bucket_weights(values, counts, 0.2), [0.82, 0.4, 0.5])
    by_sum = bucket_weights(values, counts, 0.5, normalise="sum")
    np.testing.assert_allclose(by_sum, [0.5 / 16 + 2 / 7, 5 / 16 + 0.5 / 7, 2.5 / 16 + 1 / 7])


def test_empty_buckets_weigh_nothing_and_zeros_weigh_by_count():
    assert bucket_weights(np.array([1.0, 9.0]), np.array([3, 0]), 0.2).tolist() == [1.0, 0.0]
    assert bucket_weights(np.zeros(1), np.array([7]), 0.0).tolist() == [1.0]
    assert bucket_weights(np.zeros(0), np.zeros(0, dtype=np.int64), 0.2).size == 0
    with pytest.raises(ConfigError, match="sigma"):
        bucket_weights(np.zeros(1), np.ones(1, dtype=np.int64), 1.5)
