"""The mean squared gradient that an optimizer knows, by weight."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from dynaquant_core.state import assign_roles, flatten, owned_by
from dynaquant_core.store.fisher import Fisher
from dynaquant_core.store.parts import Settings
from dynaquant_core.store.prepare import prepare


def fisher_after(optimizer_class, steps=3, **options):
    """What is known of a weight whose every gradient is 2, and of one whose every gradient is 1."""
    weights = {"loud": torch.zeros(30, 30), "quiet": torch.zeros(8)}
    optimizer = optimizer_class(list(weights.values()), lr=1e-3, **options)
    for _ in range(steps):
        weights["loud"].grad, weights["quiet"].grad = torch.full((30, 30), 2.0), torch.ones(8)
        optimizer.step()
    leaves = flatten({"model": weights, "optimizer": optimizer.state_dict()}).leaves
    names = [name for name, role in assign_roles(leaves).items() if role == "weight"]
    return Fisher(owned_by(leaves, names))


@pytest.mark.parametrize("steps", [1, 7, 300])
def test_adams_second_moment_without_its_bias(steps):
    found = fisher_after(torch.optim.AdamW, steps, foreach=False)
    assert list(found) == ["model.loud", "model.quiet"]
    assert found["model.loud"] == pytest.approx(4.0, rel=1e-3)
    assert found["model.quiet"] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.NAdam, {}),
        (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
        (torch.optim.AdamW, {"betas": (0.9, 0.95)}),
    ],
)
def test_the_ratio_between_weights_is_right_for_every_average_of_squares(optimizer_class, options):
    found = fisher_after(optimizer_class, **options)
    assert found["model.loud"] / found["model.quiet"] == pytest.approx(4.0, rel=1e-2)


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [(torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adagrad, {}), (torch.optim.Adamax, {})],
)
def test_nothing_is_known_of_optimizers_that_average_no_squares(optimizer_class, options):
    found = fisher_after(optimizer_class, **options)
    assert not found
    assert "model.loud" not in found
    assert found.get("model.loud") is None


def test_squares_are_averaged_only_when_they_are_looked_up():
    class Counting(Mapping[str, Tensor]):
        """Moments of which it is known how often they were read."""

        reads = 0

        def __getitem__(self, kind: str) -> Tensor:
            Counting.reads += 1
            return torch.full((4,), 0.5)

        def __iter__(self):
            return iter(["exp_avg_sq"])

        def __len__(self):
            return 1

    found = Fisher({"w": Counting(), "v": Counting()})
    before = Counting.reads
    assert "w" in found
    assert len(found) == 2
    assert Counting.reads == before


@pytest.mark.parametrize(("taken", "share"), [(0.0, 1.0), (1.0, 0.001), (math.inf, 1.0)])
def test_odd_step_counts_do_no_harm(taken, share):
    owned = {"exp_avg_sq": torch.full((4,), 0.5), "step": torch.tensor(taken)}
    assert Fisher({"w": owned})["w"] == pytest.approx(0.5 / share, rel=1e-6)
    owned["step"] = torch.ones(4)
    assert Fisher({"w": owned})["w"] == 0.5


def test_a_moving_average_of_a_weight_is_as_sensitive_as_the_weight():
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 16))
    optimizer = torch.optim.AdamW(model.parameters())
    for scale, parameter in enumerate(model.parameters(), 1):
        parameter.grad = torch.full_like(parameter, float(scale))
    optimizer.step()
    average = torch.optim.swa_utils.AveragedModel(model)
    tree = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "extra": {"ema": average.state_dict(), "frozen": {"2.weight": torch.randn(16, 32)}},
    }
    settings = Settings.of("lattice", "8bit", ())
    fisher = prepare(settings, 1, tree, gradients=None, model=None).hints.fisher
    for name in ("0.weight", "1.weight"):
        assert fisher[f"extra.ema.module.{name}"] == fisher[f"model.{name}"]
    assert fisher["model.0.weight"] != fisher["model.1.weight"]
    assert "extra.frozen.2.weight" not in fisher
