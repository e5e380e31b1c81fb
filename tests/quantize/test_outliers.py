"""Outliers by the density of a normal fit."""

from __future__ import annotations

import numpy as np
import pytest

from dynaquant_core.quantize.outliers import LOG_PROBABILITY, normal_fit, outlier_reach, outliers
from tests.quantize.data import DISTRIBUTIONS, sample


def log_density(values, mean, std):
    return -0.5 * ((values - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))


@pytest.mark.parametrize("name", [name for name in DISTRIBUTIONS if name not in {"constant", "zeros"}])
@pytest.mark.parametrize("size", [300, 600_000])
def test_the_rule(name, size):
    values = sample(name, size)
    wide = values.astype(np.float64)
    mean, std = normal_fit(values)
    assert mean == pytest.approx(wide.mean(), rel=1e-6, abs=1e-9 * wide.std())
    assert std == pytest.approx(wide.std(), rel=1e-6)
    density = log_density(wide, mean, std)
    sure = np.abs(density - LOG_PROBABILITY) > 1e-9 * np.abs(density)
    np.testing.assert_array_equal(outliers(values)[sure], (density < LOG_PROBABILITY)[sure])


@pytest.mark.parametrize("std", [1e-30, 0.01, 0.02, 1.0, 21.0])
def test_the_reach_is_where_the_density_falls_to_the_limit(std):
    assert log_density(outlier_reach(std), 0.0, std) == pytest.approx(LOG_PROBABILITY)


def test_a_narrow_layer_has_few_and_a_wide_one_nothing_else():
    assert outlier_reach(0.02) / 0.02 == pytest.approx(3.74, abs=0.01)
    assert outliers(sample("narrow", 100_000)).mean() < 1e-3
    assert outliers(30 * sample("normal", 1000)).all()


def test_equal_values_have_none():
    assert not outliers(np.full(300, 7.0, np.float32)).any()


def test_values_at_the_ends_of_float32():
    values = np.append(np.zeros(299), [3.4e38, -3.4e38]).astype(np.float32)
    assert np.isfinite(normal_fit(values)).all()
    assert outliers(values).all()  # so wide a distribution is nowhere above e^-4
