"""What is taken from a handle and kept: the list that is clipped, and an average of the weights."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from dynaquant_core.errors import ConfigError
from dynaquant_core.memory import samo
from tests.memory.samo_nets import conv, loss_of

INPUTS = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def wrapped(seed, **options):
    model = net(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, samo.wrap(model, optimizer, **({"sparsity": 0.5} | options))


def backward(model, optimizer):
    optimizer.zero_grad()
    model(INPUTS).square().sum().backward()


def norm_of(parameters):
    return float(torch.stack([one.grad.norm() for one in parameters]).norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_list_that_is_kept_over_a_resume_with_another_mask_is_still_what_is_clipped(dtype):
    """It held vectors of the mask before, without gradients, and clipping did nothing."""
    first, its_optimizer, its_handle = wrapped(0, dtype=dtype, sparsity=0.7)
    backward(first, its_optimizer)
    its_optimizer.step()
    model, optimizer, handle = wrapped(1, dtype=dtype)
    kept = list(handle.parameters())
    model.load_state_dict(first.state_dict())
    optimizer.load_state_dict(copy.deepcopy(its_optimizer.state_dict()))
    assert all(torch.equal(mask, its_handle.masks()[name]) for name, mask in handle.masks().items())
    backward(model, optimizer)
    before = norm_of(handle.parameters())
    assert float(clip_grad_norm_(kept, 1e-3)) == pytest.approx(before, rel=1e-4)
    assert norm_of(handle.parameters()) == pytest.approx(1e-3, rel=1e-3)
    weights = dict(handle.weights())
    optimizer.step()
    moved = torch.cat([(one - weights[name]).flatten() for name, one in handle.weights()])
    assert 0 < float(moved.norm()) <= 1.01e-4


def test_a_list_that_is_kept_over_a_draw_in_half_precision_is_too():
    model, optimizer, handle = wrapped(0, dtype=torch.bfloat16, pruner=samo.EarlyBird(window=1, distance=1.0))
    kept = list(handle.parameters())
    assert any(handle.end_epoch() for _ in range(3))
    backward(model, optimizer)
    clip_grad_norm_(kept, 1e-3)
    assert norm_of(handle.parameters()) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("again", [False, True])
def test_a_list_that_cannot_stay_right_is_said_once(again, caplog):
    """In float32 a layer that is not pruned is stepped itself, and a vector in its place once it is."""
    bird = samo.EarlyBird(window=1, distance=1.0)
    model, optimizer, handle = wrapped(0, dtype=torch.float32, pruner=bird)
    kept = list(handle.parameters())
    assert any(handle.end_epoch() for _ in range(3))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            backward(model, optimizer)
            clip_grad_norm_(handle.parameters() if again else kept, 1e-3)
            optimizer.step()
    said = [one for one in caplog.messages if "handle.parameters() was asked for before" in one]
    assert len(said) == (0 if again else 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_theta32_in_the_models_shapes_and_zero_where_it_is_pruned(dtype):
    model = conv().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype)
    loss_of(model, 0).backward()
    optimizer.step()
    masks, masters = handle.masks(), {slot.name: slot.master for slot in handle.engine.slots}
    found = dict(handle.weights())
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, one in model.named_parameters():
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name].to(one.dtype), one)
        kept = found[name][masks[name]] if name in masks else found[name].flatten()
        assert torch.equal(kept.sort().values, masters[name].detach().flatten().sort().values)
        assert found[name].data_ptr() != one.data_ptr()
    with torch.no_grad():
        model.head.bias.fill_(0.5)
    assert dict(handle.weights())["head.bias"].tolist() == [0.5] * 5
    handle.unwrap()
    with pytest.raises(ConfigError, match=r"weights\(\) after unwrap"):
        next(handle.weights())


def test_an_average_of_them_moves_where_one_of_the_models_own_stands_still():
    model = net(0)
    average, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), lr=1e-4)
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.bfloat16)
    own = [one.detach().clone() for one in model.parameters()]
    exact: dict[str, torch.Tensor] = {}
    for step in range(100):
        backward(model, optimizer)
        optimizer.step()
        with torch.no_grad():
            for name, weight in handle.weights():
                average.get_parameter(name).lerp_(weight, 1.0 if step == 0 else 0.01)
                exact[name] = exact.get(name, weight).double().lerp(weight.double(), 0.01)
            for one, parameter in zip(own, model.parameters(), strict=True):
                one.lerp_(parameter, 0.01)
    worst = max(float((exact[name] - one.detach()).abs().max()) for name, one in average.named_parameters())
    rounded = [
        float((exact[name] - one).abs().max())
        for (name, _), one in zip(model.named_parameters(), own, strict=True)
    ]
    assert worst < 1e-6
    assert max(rounded) > 100 * worst
