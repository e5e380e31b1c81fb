"""Steps: wide where weights matter little, on the grid of bfloat16, and sane whatever the tensors hold."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.errors import ConfigError, UnsupportedStateError
from dynaquant_core.quantize.lattice import TensorStat, relative_steps, round_step, spread, steps_of, sums
from tests.quantize.data import DISTRIBUTIONS, sample

ODD = st.sampled_from([0.0, math.inf, math.nan, 1e-300, 1e300, 1e-40])
STATS = st.builds(
    TensorStat,
    st.integers(0, 10**9),
    st.one_of(st.floats(1e-6, 10), ODD),
    st.one_of(st.none(), st.floats(1e-16, 1), ODD),
)
TABLES = st.lists(STATS, max_size=8).map(lambda found: {f"t{i}": stat for i, stat in enumerate(found)})


def geometric_mean(values, counts):
    return math.exp(np.average(np.log(values), weights=counts))


def test_steps_follow_spread_and_fisher_information():
    stats = {
        "a": TensorStat(100, 0.02, 1e-8),
        "b": TensorStat(300, 0.5, 1e-6),
        "c": TensorStat(50, 0.1, 1e-9),
    }
    found = relative_steps(stats)
    law = {name: math.sqrt(stat.std / math.sqrt(stat.fisher)) for name, stat in stats.items()}
    mean = geometric_mean(list(law.values()), [100, 300, 50])
    assert found == pytest.approx({name: value / mean for name, value in law.items()}, rel=1e-12)


def test_without_fisher_information_large_tensors_have_wide_steps():
    found = relative_steps({"a": TensorStat(100, 1.0), "b": TensorStat(1600, 0.01)})
    assert found["b"] / found["a"] == pytest.approx(4)
    assert geometric_mean(list(found.values()), [100, 1600]) == pytest.approx(1)


def test_a_tensor_without_fisher_information_takes_its_place_among_those_with_it():
    known = {"a": TensorStat(400, 0.1, 1e-8), "b": TensorStat(100, 0.2, 1e-6)}
    law = relative_steps(known)
    found = relative_steps({**known, "c": TensorStat(200, 0.1, None), "d": TensorStat(200, 0.1, 0.0)})
    assert found["a"] / found["b"] == pytest.approx(law["a"] / law["b"])
    assert found["c"] == found["d"]
    shift = geometric_mean([law["a"] / 20, law["b"] / 10], [400, 100])
    assert found["c"] / found["a"] == pytest.approx(shift * math.sqrt(200) / law["a"])


@settings(max_examples=300, deadline=None)
@given(TABLES, st.floats(1e-12, 1e12))
def test_steps_are_sane_whatever_the_tensors_hold(stats, scale):
    relative = relative_steps(stats)
    assert list(relative) == list(stats)
    assert all(math.isfinite(step) and step > 0 for step in relative.values())
    usual = [n for n, s in stats.items() if s.count and s.std > 0 and math.isfinite(s.std)]
    if usual:
        counts = [stats[name].count for name in usual]
        assert geometric_mean([relative[name] for name in usual], counts) == pytest.approx(1)
        assert max(relative.values()) / min(relative.values()) <= 2**12 * 1.000001
    for step in steps_of(scale, stats).values():
        assert 2.0**-100 <= step <= 2.0**100
        assert round_step(step) == step


def test_no_step_is_far_from_the_median():
    stats = {f"t{i}": TensorStat(100, 1.0, 1.0) for i in range(5)}
    stats |= {"wide": TensorStat(100, 1.0, 1e-40), "narrow": TensorStat(100, 1.0, 1e40)}
    found = relative_steps(stats)
    assert found["wide"] / found["t0"] == pytest.approx(64)
    assert found["t0"] / found["narrow"] == pytest.approx(64)


def test_tensors_of_equal_values_get_the_narrowest_step():
    stats = {"a": TensorStat(1000, 0.02, 1e-8), "zeros": TensorStat(1000, 0.0, 1e-8)}
    found = relative_steps(stats)
    assert found == {"a": 1.0, "zeros": 1 / 64}
    assert relative_steps({"zeros": stats["zeros"]}) == {"zeros": 1.0}
    assert steps_of(3.0, {"zeros": stats["zeros"]}) == {"zeros": 2.0**-100}
    assert relative_steps({}) == steps_of(1.0, {}) == {}


def test_a_scale_has_no_unit():
    stats = {"a": TensorStat(300, 0.02, 1e-8), "b": TensorStat(100, 0.4, 1e-5)}
    large = {n: TensorStat(s.count, 1024 * s.std, s.fisher) for n, s in stats.items()}
    small, wide = steps_of(0.5, stats), steps_of(0.5, large)
    assert {name: 1024 * step for name, step in small.items()} == wide
    assert {name: 2 * step for name, step in small.items()} == steps_of(1.0, stats)
    assert geometric_mean(list(small.values()), [300, 100]) == pytest.approx(
        0.5 * geometric_mean([0.02, 0.4], [300, 100]), rel=2.0**-8
    )


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_an_absurd_scale_is_refused(scale):
    with pytest.raises(ConfigError, match="scale must be a positive finite number"):
        steps_of(scale, {"a": TensorStat(1, 1.0)})


@pytest.mark.parametrize(
    ("number", "step"),
    [(1.0, 1.0), (0.1, 0.10009765625), (1.00390625, 1.0), (1.01171875, 1.015625), (1e300, 2.0**100)],
)
def test_steps_are_rounded_to_bfloat16(number, step):
    assert round_step(number) == step
    assert torch.tensor(step).to(torch.bfloat16).item() == step
    assert round_step(math.inf) == 2.0**100
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="step must be positive"):
            round_step(bad)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_spread_is_the_standard_deviation(name, dtype):
    values = torch.from_numpy(sample(name, 70_001)).clamp(-60000, 60000).to(dtype)
    expected = values.double().numpy().std()
    plain = spread(values) if name != "outlier" else sums.deviation(values.view(-1), 0.25, math.inf)
    assert plain == pytest.approx(expected, rel=1e-9, abs=1e-12)
    flat = sums.device_sums(values.view(-1), 0.25)
    shifted = values.double().numpy() - 0.25
    np.testing.assert_allclose(flat, [shifted.sum(), (shifted**2).sum()], rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [64, 256, 4096, 1_000_001])
@pytest.mark.parametrize("outlier", [1e6, -1e6])
def test_a_single_outlier_does_not_widen_the_steps_of_the_rest(dtype, size, outlier):
    values = (0.02 * torch.randn(size, generator=torch.Generator().manual_seed(1))).to(dtype)
    usual = spread(values)
    for place in (0, size // 2, size - 1):
        spoilt = values.clone()
        spoilt[place] = outlier
        step, before = (steps_of(0.1, {"w": TensorStat(size, std)})["w"] for std in (spread(spoilt), usual))
        assert before * 0.97 <= step <= before * (2.0 if size < 1000 else 1.02)
        shown = sums.device_sums(spoilt, 0.01, 0.25) / size
        np.testing.assert_allclose(shown, sums.host_sums(spoilt, 0.01, 0.25) / size, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("heavy", ["student", "sparse", "columns"])
def test_tails_that_trained_weights_have_count_in_full(heavy):
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(300, 512, generator=generator)
    if heavy == "student":
        values /= torch.rand(300, 512, generator=generator).clamp(min=1e-3)
    elif heavy == "sparse":
        values *= torch.rand(300, 512, generator=generator) < 0.02
    else:
        values[:, :3] *= 60
    assert spread(values) == pytest.approx(float(values.double().std(correction=0)), rel=1e-9)


@pytest.mark.parametrize("shape", [(64, 64, 3, 3), (4096, 161)], ids=["taps", "columns"])
def test_what_is_usual_is_not_told_by_one_tap_or_column(shape):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    values.view(-1, shape[-1] if len(shape) == 2 else 9)[:, 0] *= 0.01
    usual = sums.surroundings(values.view(-1))[1]
    assert usual == pytest.approx(float(values.abs().quantile(0.99)), rel=0.1)
    assert spread(values) == pytest.approx(float(values.double().std(correction=0)), rel=1e-9)


def test_spread_of_little():
    assert spread(torch.empty(0)) == 0.0
    assert spread(torch.full((100_000,), 0.1)) == 0.0
    assert spread(torch.tensor(3.0)) == 0.0
    assert spread(1000 + torch.tensor([[0.0, 2.0], [2.0, 0.0]]).t()) == 1.0
    for bad in (math.nan, math.inf, -math.inf):
        assert not math.isfinite(spread(torch.tensor([1.0, bad])))
        assert not math.isfinite(spread(torch.tensor([bad, 1.0])))
    with pytest.raises(UnsupportedStateError):
        spread(torch.ones(3, dtype=torch.int64))


def test_spread_does_not_depend_on_the_number_of_threads(monkeypatch):
    values, found = torch.from_numpy(sample("student", 300_001)), set()
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("DYNAQUANT_THREADS", threads)
        found.add(spread(values))
    assert len(found) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none in this machine")
def test_spread_of_a_cuda_tensor():
    values = torch.from_numpy(sample("student", 300_001))
    assert spread(values.cuda()) == pytest.approx(spread(values), rel=1e-12)


def test_no_step_is_wider_than_it_may_be_in_spreads_of_its_own_tensor():
    stats = {
        "a": TensorStat(10_000, 0.1, 1e-9),
        "b": TensorStat(10_000, 0.01, 1e-5),
        "flat": TensorStat(9, 0.0),
    }
    tight = {name: replace(stat, widest=1.0) for name, stat in stats.items()}
    free, bounded = steps_of(4.0, stats), steps_of(4.0, tight)
    assert (free["a"] > 0.4, free["b"] > 0.02) == (True, True), "the bound has something to do"
    assert bounded == {"a": round_step(0.1), "b": round_step(0.01), "flat": free["flat"]}
    mixed = steps_of(4.0, tight | {"a": stats["a"]})
    assert mixed == bounded | {"a": free["a"]}, "each tensor has its own"
    assert steps_of(0.1, tight) == steps_of(0.1, stats), "and nothing where steps are narrower"


def test_a_vector_without_gradients_gets_no_wider_steps_than_its_own_values_are_spread():
    """Such as a bias before a batch norm, which sees it again in evaluation mode."""
    stats = {"w": TensorStat(10_000, 0.1, 1e-5), "b": TensorStat(100, 0.07, 1e-17, vector=True)}
    assert steps_of(0.5, stats)["b"] == round_step(0.5 * 0.07)
    stats["b"] = TensorStat(100, 0.07, 1e-3, vector=True)
    assert steps_of(0.5, stats)["b"] < 0.5 * 0.07  # one that matters keeps its narrower steps
