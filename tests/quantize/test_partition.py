"""Protection and pruning: shares, groups, the energy cap, and what wins."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dynaquant_core.errors import ConfigError
from dynaquant_core.quantize import seam
from dynaquant_core.quantize.buckets import BitBuckets, LogBuckets
from dynaquant_core.quantize.codebook import lookup
from dynaquant_core.quantize.partition import cuts, protection_threshold, pruning_threshold
from dynaquant_core.quantize.sketch import Sketch
from tests.quantize.data import DISTRIBUTIONS, sample

SCHEMES = [BitBuckets(6), BitBuckets(10), LogBuckets(0.01)]


class Model:
    """Named tensors, their gradients and everything `cuts` wants to know about them."""

    def __init__(self, tensors, gradients=None, types=None, scheme=SCHEMES[0]):
        self.tensors, self.gradients, self.scheme = tensors, gradients or {}, scheme
        self.types = types or dict.fromkeys(tensors, "linear")

    def cuts(self, **knobs):
        unsigned = self.scheme.unsigned()
        magnitudes = {
            name: Sketch.of(tensor, self.scheme).magnitude() for name, tensor in self.tensors.items()
        }
        scores = {}
        for name, gradient in self.gradients.items():
            counts, energy = seam.score_histogram(self.tensors[name], gradient, unsigned)
            scores[name] = (Sketch(unsigned, counts), energy)
        return cuts(magnitudes, scores, self.types, **({"protect": 0.0, "prune": 0.0} | knobs))

    def codes(self, **knobs):
        """Codes of every tensor: 0 pruned, 1 protected, 2 the rest."""
        levels = lookup(np.zeros(1), self.scheme)
        found = self.cuts(**knobs)
        return {
            name: seam.assign(tensor, self.gradients.get(name), found[name], levels, self.scheme)[0]
            for name, tensor in self.tensors.items()
        }


def tensor(name="normal", size=20_000, seed=0, scale=1.0):
    return torch.from_numpy(sample(name, size, seed) * np.float32(scale))


def share(codes, code):
    joined = np.concatenate(list(codes.values()))
    return float((joined == code).mean())


def bucket_share(values, threshold, scheme):
    """Share of values in the threshold's own bucket: what a bucket's width may cost."""
    unsigned = scheme.unsigned()
    index = unsigned.bucket_of(np.abs(values.numpy()))
    return float((index == unsigned.bucket_of(np.float32(threshold))).mean())


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("fraction", [0.0005, 0.005, 0.01, 0.1])
@pytest.mark.parametrize("name", ["normal", "laplace", "student", "lognormal", "wide"])
def test_between_one_and_two_fractions_are_protected(name, fraction, scheme):
    weights = tensor(name, 100_000)
    independent = {"w": tensor("normal", 100_000, seed=9)}
    same = {"w": torch.ones(100_000)}
    for gradients in (independent, same, {}):
        model = Model({"w": weights}, gradients, scheme=scheme)
        cut = model.cuts(protect=fraction)["w"]
        protected = share(model.codes(protect=fraction), 1)
        rules = 2 if gradients else 1
        assert protected <= rules * fraction
        next_bucket = float(scheme.limits[np.searchsorted(scheme.limits, np.float32(cut.protect_magnitude))])
        assert protected > fraction - bucket_share(weights, next_bucket, scheme) - 1e-12


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_thresholds_never_take_more_than_their_share_and_miss_less_than_a_bucket(name, fraction, scheme):
    values = tensor(name, 10_000)
    sizes = np.abs(values.numpy())
    sketch = Sketch.of(values, scheme).magnitude()
    above = protection_threshold([sketch], fraction)
    assert (sizes > above).mean() <= fraction
    below = pruning_threshold([sketch], fraction)
    assert (sizes <= below).mean() <= fraction
    limits = scheme.limits
    following = limits[np.searchsorted(limits, np.float32(below), side="right")] if below >= 0 else limits[0]
    larger = limits[limits >= sizes[sizes > below].min()][0] if (sizes > below).any() else following
    assert (sizes <= max(larger, following)).mean() > fraction
    if above < math.inf:
        taken = limits[limits < sizes[sizes <= above].max()]
        assert taken.size == 0 or (sizes > taken[-1]).mean() > fraction


def test_a_constant_tensor_is_neither_pruned_nor_protected():
    codes = Model({"w": torch.full((500,), 0.25)}, {"w": torch.ones(500)}).codes(protect=0.01, prune=0.5)
    assert set(codes["w"]) == {2}


def test_zeros_and_empty_models_pass():
    assert Model({}).cuts(protect=0.01, prune=0.5) == {}
    assert set(Model({"w": torch.zeros(300)}).codes(protect=0.01, prune=0.5)["w"]) == {2}
    assert Model({"w": torch.zeros(0)}).codes(protect=0.01, prune=0.5)["w"].size == 0
    assert Model({"w": torch.ones(1)}).codes(protect=0.01, prune=0.5)["w"].tolist() == [2]


@pytest.mark.parametrize("metric", ["magnitude", "sensitivity"])
def test_pruning_takes_the_least_important_share_of_a_type(metric):
    weights, gradients = {"a": tensor(), "b": tensor(seed=1)}, {"a": tensor(seed=2), "b": tensor(seed=3)}
    model = Model(weights, gradients)
    codes = model.codes(prune=0.3, prune_metric=metric, energy_cap=1.0)
    assert 0.29 < share(codes, 0) <= 0.3
    for name, weight in weights.items():
        importance = weight.abs() if metric == "magnitude" else (weight * gradients[name]).abs()
        pruned = torch.from_numpy(codes[name] == 0)
        assert importance[pruned].max() < importance[~pruned].min()


def test_types_have_thresholds_of_their_own_and_embeddings_are_never_pruned():
    weights = {"conv": tensor(scale=10.0), "linear": tensor(scale=0.01), "embedding": tensor(scale=0.001)}
    model = Model(weights, types={name: name.replace("conv", "convolution") for name in weights})
    codes = model.codes(prune=0.1)
    for name, expected in (("conv", 0.1), ("linear", 0.1), ("embedding", 0.0)):
        assert (codes[name] == 0).mean() == pytest.approx(expected, abs=0.005)


def test_embeddings_are_protected_apart_from_the_rest():
    weights = {"a": tensor(scale=0.02), "b": tensor(scale=0.01, seed=1), "e": tensor(scale=1.0, seed=2)}
    model = Model(weights, types={"a": "linear", "b": "attention", "e": "embedding"})
    found = model.cuts(protect=0.01)
    assert found["a"].protect_magnitude == found["b"].protect_magnitude < found["e"].protect_magnitude
    codes = model.codes(protect=0.01)
    assert 0.008 < np.concatenate((codes["a"], codes["b"]) == np.uint8(1)).mean() <= 0.01
    assert 0.008 < (codes["e"] == 1).mean() <= 0.01


@pytest.mark.parametrize("metric", ["magnitude", "sensitivity"])
@pytest.mark.parametrize("cap", [0.02, 0.001, 0.0])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_tensor_loses_more_than_the_cap_of_its_energy(name, cap, metric):
    weights = {"small": tensor(name, scale=1e-4), "large": tensor(name, seed=1), "huge": tensor(scale=100.0)}
    gradients = {key: tensor(seed=5, scale=1e-3) for key in weights}
    gradients["large"] *= 1e-6
    model = Model(weights, gradients)
    codes = model.codes(prune=0.5, prune_metric=metric, energy_cap=cap)
    for key, weight in weights.items():
        energy = weight.double() ** 2
        assert energy[torch.from_numpy(codes[key] == 0)].sum() <= cap * energy.sum() * (1 + 1e-9) + 2.0**-240


def test_without_the_cap_a_small_tensor_among_large_ones_is_lost():
    weights = {"small": tensor(scale=1e-4), "large": tensor(seed=1, size=60_000)}
    assert (Model(weights).codes(prune=0.3, energy_cap=1.0)["small"] == 0).mean() > 0.99
    kept = (Model(weights).codes(prune=0.3, energy_cap=0.02)["small"] == 0).mean()
    assert 0.2 < kept < 0.5


def test_protection_wins_over_pruning():
    weights, gradients = {"w": torch.linspace(0.1, 1, 1000)}, {"w": torch.linspace(1, 1e-6, 1000)}
    codes = Model(weights, gradients).codes(
        protect=0.01, prune=0.5, prune_metric="sensitivity", energy_cap=1.0
    )["w"]
    assert codes[-1] == 1  # the largest weight has the smallest sensitivity
    assert (codes[-100:-20] == 0).all()


def test_pruning_by_sensitivity_without_gradients_is_refused():
    with pytest.raises(ConfigError, match="needs gradients"):
        Model({"w": tensor()}).cuts(prune=0.1, prune_metric="sensitivity")


def test_a_tensor_without_gradient_keeps_the_rules_that_need_none():
    weights = {"a": tensor(), "frozen": tensor(seed=1)}
    model = Model(weights, {"a": tensor(seed=2)})
    found = model.cuts(protect=0.01, prune=0.3, prune_metric="sensitivity")
    assert not found["frozen"].needs_gradient
    codes = model.codes(protect=0.01, prune=0.3, prune_metric="sensitivity")
    assert set(codes["frozen"]) == {1, 2}
    assert set(codes["a"]) == {0, 1, 2}


@pytest.mark.parametrize("metric", ["magnitude", "sensitivity"])
def test_a_pruning_threshold_is_shared_by_a_type_or_by_nobody_or_by_all(metric):
    """Tensors of four scales in two types, beside an embedding, which no scope prunes."""
    scales = {"a": 0.1, "b": 1.0, "c": 10.0, "d": 100.0, "e": 0.01}
    tensors = {name: tensor(seed=number, scale=scale) for number, (name, scale) in enumerate(scales.items())}
    types = {"a": "linear", "b": "linear", "c": "convolution", "d": "convolution", "e": "embedding"}
    model = Model(tensors, {name: torch.ones_like(values) for name, values in tensors.items()}, types)
    pruned = {}
    for scope in ("layer_type", "tensor", "global"):
        codes = model.codes(prune=0.4, prune_metric=metric, energy_cap=1.0, prune_scope=scope)
        pruned[scope] = {name: float((found == 0).mean()) for name, found in codes.items()}
        assert pruned[scope]["e"] == 0
    assert all(0.38 < pruned["tensor"][name] <= 0.4 for name in "abcd")
    by_type = pruned["layer_type"]
    assert by_type["a"] > 0.6 > 0.2 > by_type["b"]
    assert by_type["c"] > 0.6 > 0.2 > by_type["d"]
    assert pruned["global"]["a"] > 0.9
    assert pruned["global"]["d"] < 0.02
