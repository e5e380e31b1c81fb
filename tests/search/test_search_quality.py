from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynaquant_core.errors import ConfigError, EvaluationError
from dynaquant_core.search import Degradation, Quality, degradation
from dynaquant_core.search.quality import Goal

positive = st.floats(0.01, 100)


@pytest.mark.parametrize(
    "result",
    [
        1.5,
        np.float32(1.5),
        torch.tensor(1.5),
        [1.5],
        np.array([1.5]),
        torch.tensor([1.5], requires_grad=True),
    ],
)
def test_takes_what_evaluate_may_return(result: object) -> None:
    assert Quality.of(result).values == (1.5,)


def test_takes_one_value_a_batch_of_any_kind() -> None:
    batches = (torch.tensor(1.0), np.float64(2.0), 3)
    assert Quality.of(batches).values == (1.0, 2.0, 3.0)
    assert Quality.of(x for x in batches).mean == 2.0


@pytest.mark.parametrize(
    "result",
    [
        None, "0.5", [], {"loss": 1.0}, [[1.0]], np.ones((2, 2)), [None], 1j, 10**400,
        torch.empty((), device="meta"), torch.eye(2).to_sparse(),
    ],
)  # fmt: skip
def test_refuses_anything_else(result: object) -> None:
    with pytest.raises(EvaluationError, match="evaluate returned"):
        Quality.of(result)


@given(positive, positive)
def test_degradation_is_relative_and_positive_when_worse(reference: float, quality: float) -> None:
    lower = degradation(Quality((reference,)), Quality((quality,)), "min")
    assert lower.mean == pytest.approx((quality - reference) / reference)
    assert degradation(Quality((reference,)), Quality((quality,)), "max").mean == -lower.mean


def test_the_papers_example() -> None:
    assert degradation(Quality((77.5,)), Quality((77.4,)), "max").mean == pytest.approx(0.00129, abs=1e-5)


def test_paired_differences_cancel_what_batches_have_in_common() -> None:
    rng = np.random.default_rng(0)
    hardness = rng.uniform(1, 5, 64)
    reference = Quality(tuple(hardness))
    noisy = Quality(tuple(hardness + 0.03 + rng.normal(0, 0.002, 64)))
    found = degradation(reference, noisy, "min")
    expected_se = 0.002 / 8 / hardness.mean()
    assert found.mean == pytest.approx(0.03 / hardness.mean(), rel=0.05)
    assert found.se == pytest.approx(expected_se, rel=0.3)
    assert found.se < hardness.std() / 8 / hardness.mean() / 100


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_negative_reference_keeps_the_sign(mode: str) -> None:
    worse = -1.0 if mode == "min" else -3.0
    assert degradation(Quality((-2.0,)), Quality((worse,)), mode).mean == 0.5  # type: ignore[arg-type]


def test_a_reference_of_zero_has_no_scale() -> None:
    zero = Quality((0.0,))
    assert degradation(zero, zero, "max").mean == 0.0
    assert degradation(zero, Quality((1.0,)), "max").mean == 0.0
    assert degradation(zero, Quality((1.0,)), "min").mean == math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_candidate_that_is_not_finite_never_meets(bad: float) -> None:
    goal = Goal(Quality((1.0, 1.0)), 1e9, "max")
    found = goal.judge(Quality((1.0, bad)))
    assert found.mean == math.inf
    assert not goal.met(found)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reference_that_is_not_finite_is_an_error(bad: float) -> None:
    with pytest.raises(EvaluationError, match="not finite"):
        Goal(Quality((1.0, bad)), 0.01, "min")


def test_another_number_of_batches_is_an_error() -> None:
    with pytest.raises(EvaluationError, match="same batches"):
        degradation(Quality((1.0, 2.0)), Quality((1.0,)), "min")


@pytest.mark.parametrize(
    ("threshold", "mode"), [(-0.1, "min"), (math.nan, "min"), ("1%", "min"), (0.1, "up")]
)
def test_bad_goals_are_refused(threshold: object, mode: object) -> None:
    with pytest.raises(ConfigError):
        Goal(Quality((1.0,)), threshold, mode)  # type: ignore[arg-type]


def test_candidates_closer_than_the_standard_error_are_equal() -> None:
    assert not Degradation(0.010, 0.002).clearly_below(Degradation(0.0115, 0.0001))
    assert not Degradation(0.010, 0.0001).clearly_below(Degradation(0.0115, 0.002))
    assert Degradation(0.010, 0.001).clearly_below(Degradation(0.0115, 0.001))
    assert not Degradation(0.010).clearly_below(Degradation(0.0115), margin=0.002)
    assert Degradation(5.0).clearly_below(Degradation(math.inf))
    assert not Degradation(math.inf).clearly_below(Degradation(math.inf))


def test_values_whose_sum_no_float_holds_are_compared_all_the_same() -> None:
    huge = Quality((1.7e308, 1.7e308, -1.7e308))
    assert huge.mean == pytest.approx(1.7e308 / 3)
    assert degradation(huge, huge, "min") == Degradation(0.0)
    assert degradation(huge, Quality((-1.7e308, 1.7e308, 1.7e308)), "min").mean == math.inf
    wide = degradation(Quality((1e200, 3e200)), Quality((2e200, 3e200)), "min")
    assert (wide.mean, wide.se) == pytest.approx((0.25, 0.25))
