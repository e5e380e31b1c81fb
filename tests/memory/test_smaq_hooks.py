"""What SmaQ hooks and holds: nothing that outlives it, nothing of copies, nothing behind a wrapper."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from dynaquant_core.errors import ConfigError, StateMismatchError
from dynaquant_core.memory import smaq
from tests.memory.nets import OFF, bits, mlp, rows, train


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def test_removed_it_is_gone_and_the_training_is_the_plain_one():
    def life(applied):
        model = mlp()
        optimizer = adamw(model)
        if applied:
            handle = smaq.apply(model, optimizer)
            handle.remove()
            handle.remove()
        for step in range(3):
            train(model, optimizer, rows(step))
        return bits(model.parameters())

    assert all(torch.equal(*pair) for pair in zip(life(True), life(False), strict=True))


class Positions(nn.Module):
    """Gives a parameter of its own, as learned positions and prompts do."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(64, 64))

    def forward(self):
        return self.table


def test_a_layer_that_hands_on_a_parameter_leaves_no_hooks_on_it():
    """They would code its gradient once for each pass so far, and go on after `remove`."""
    positions, layer = Positions(), nn.Linear(64, 4)
    model = nn.ModuleList([positions, layer])
    with smaq.apply(model, adamw(model), **OFF | {"gradient_maps": True}, smallest=64) as handle:
        for step in range(3):
            layer(rows(step)[0] + positions()).square().sum().backward()
            assert handle.report()["gradient map"]["tensors"] == step + 1, "of the linear layer"
    assert not positions.table._backward_hooks


@pytest.mark.parametrize("feature_maps", ["saved", "inline"])
def test_a_deep_copy_is_not_coded(feature_maps):
    """A teacher or a moving average, which no `remove` would ever reach."""
    model, (inputs, _) = mlp(), rows()
    with smaq.apply(model, adamw(model), feature_maps=feature_maps) as handle:
        copied = copy.deepcopy(model)
        copied(inputs).sum().backward()
        assert not handle.report().keys() - {"memory"}
        assert handle.report().get("memory", {"peak": 0})["peak"] == 0
        model(inputs).sum().backward()
        assert handle.report()["gradient map"]["tensors"] > 0
    plain = mlp()
    plain(inputs).sum().backward()
    for one, other in zip(copied.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("removed", [True, False])
def test_models_and_handles_are_let_go(removed):
    model = mlp()
    handle = smaq.apply(model, adamw(model))
    gone = weakref.ref(model)
    if removed:
        handle.remove()
    del model, handle
    gc.collect()
    assert gone() is None


def test_an_optimizer_in_accelerates_wrapper_is_refused_before_anything_is_hooked():
    """The wrapper is an optimizer by its class and calls none of an optimizer's hooks."""
    pytest.importorskip("accelerate", reason="accelerate is not installed in this environment")
    from accelerate import Accelerator

    model = mlp()
    wrapper = Accelerator(cpu=True).prepare(adamw(model))
    with pytest.raises(ConfigError, match=r"AcceleratedOptimizer wraps .*give the one inside"):
        smaq.apply(model, wrapper)
    assert not any(module._forward_hooks for module in model.modules())
    with smaq.apply(model, wrapper.optimizer) as handle:
        model(rows()[0]).sum().backward()
        wrapper.step()
    assert handle.report()["gradient"]["tensors"] == 2


class Rectified(nn.Module):
    """A layer whose sum is rectified in place, as the blocks of a ResNet do it, or apart."""

    def __init__(self, *, inplace: bool) -> None:
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(64, 64), nn.ReLU(inplace=inplace), nn.Linear(64, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.first(inputs)
        found += inputs
        return self.last(self.relu(found))


@pytest.mark.parametrize("inplace", [False, True])
def test_inline_maps_of_layers_that_work_in_place_are_coded_too(inplace: bool) -> None:
    torch.manual_seed(0)
    model, seen = Rectified(inplace=inplace), []
    model.last.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().clone()))
    with smaq.apply(model, None, **(OFF | {"feature_maps": "inline"})) as handle:
        model(torch.randn(128, 64)).sum().backward()
        assert handle.report()["map"]["tensors"] == 3
    assert seen[0].unique().numel() < 200


def test_what_is_no_state_and_what_is_given_twice_is_one_clear_error() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="given twice"):
        smaq.apply(model, [optimizer, optimizer])
    with pytest.raises(ConfigError, match="is no format"):
        smaq.apply(model, optimizer, format=smaq.SmaQ)
    with smaq.apply(model, optimizer) as handle:
        good = handle.state_dict()
        for bad in (None, 3, good | {"tallies": {"map": 3}}, good | {"step_generator": None}):
            with pytest.raises(StateMismatchError):
                handle.load_state_dict(bad)
        for name, value in good.items():
            now = handle.state_dict()[name]
            assert torch.equal(now, value) if isinstance(value, torch.Tensor) else now == value
