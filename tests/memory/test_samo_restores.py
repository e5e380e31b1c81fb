"""States go into a handle with any other mask: the weights are those of the state, and moments fit them."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

import dynaquant_core as dq
from dynaquant_core.memory import samo
from tests.memory.samo_nets import OPTIMIZERS, equal
from tests.training.models import EXACT

FLOAT32 = {"dtype": torch.float32, "sparsity": 0.8}


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))


def wrapped(seed=0, **options):
    model = net(seed)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    return model, optimizer, samo.wrap(model, optimizer, **(FLOAT32 | options))


def train(model, optimizer, steps):
    for step in steps:
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(inputs).float().square().mean().backward()
        optimizer.step()


def bird():
    return samo.EarlyBird(window=1, distance=1.0)


OTHERS = {
    "fewer": {"dense": ["0.weight"]},
    "none": {"pruner": "early_bird"},
    "other": {"sparsity": 0.3},
    "complement": {"dense": ["2.weight"]},
}


@pytest.mark.parametrize("by", ["root", "parts", "saved in between"])
@pytest.mark.parametrize("masks", OTHERS)
def test_model_first_then_optimizer_gives_the_states_weights_whatever_was_pruned(masks, by):
    """Loading the model zeroes what the mask in use prunes, before the stored mask is known."""
    first, its_optimizer, its_handle = wrapped(**OTHERS[masks])
    train(first, its_optimizer, range(2))
    states = copy.deepcopy((first.state_dict(), its_optimizer.state_dict()))
    model, optimizer, handle = wrapped(1, pruner=bird() if masks == "none" else "magnitude")
    for _ in range(2 if masks == "none" else 0):
        handle.end_epoch()
    pruned = dict(model.named_parameters())["0.weight"]
    if by == "parts":
        model[0].load_state_dict(first[0].state_dict())
        model[2].load_state_dict(first[2].state_dict())
    else:
        model.load_state_dict(states[0])
        assert (pruned == 0).float().mean() >= 0.79, "until then the mask in use holds"
    if by == "saved in between":
        optimizer.state_dict()
    optimizer.load_state_dict(states[1])
    assert equal(model, first)
    assert handle.active == its_handle.active
    assert handle.masks().keys() == its_handle.masks().keys()
    assert not handle.engine.loaded
    train(model, optimizer, range(2, 4))
    train(first, its_optimizer, range(2, 4))
    assert equal(model, first)


def test_weights_that_were_loaded_before_a_step_do_not_come_back_after_it():
    first, its_optimizer, _ = wrapped(dense=["0.weight"])
    model, optimizer, handle = wrapped(1)
    model.load_state_dict(first.state_dict())
    assert "0.weight" in handle.engine.loaded
    train(model, optimizer, range(1))
    assert not handle.engine.loaded
    now = model[0].weight.detach().clone()
    optimizer.load_state_dict(copy.deepcopy(its_optimizer.state_dict()))
    assert torch.equal(model[0].weight, now)


def test_a_checkpointer_goes_back_to_before_an_early_bird_draw(tmp_path):
    model, optimizer, handle = wrapped(pruner=bird())
    with dq.Checkpointer(tmp_path, model, optimizer, every=100, **EXACT) as saving:
        train(model, optimizer, range(2))
        handle.end_epoch()
        saving.save()
        before = copy.deepcopy(model.state_dict())
        train(model, optimizer, range(2, 4))
        assert handle.end_epoch()
        saving.restore()
    assert not handle.active
    assert not handle.masks()
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize("masks", ["as saved", "others"])
def test_a_float32_run_resumes_bit_for_bit_in_a_freshly_built_model(tmp_path, masks):
    model, optimizer, _ = wrapped(dense=["0.weight"])
    with dq.Checkpointer(tmp_path, model, optimizer, every=2, **EXACT) as saving:
        for step in range(4):
            train(model, optimizer, [step])
            saving.step()
    train(model, optimizer, range(4, 7))
    other, its_optimizer, _ = wrapped(1, **({"dense": ["0.weight"]} if masks == "as saved" else {}))
    with dq.Checkpointer(tmp_path, other, its_optimizer, every=100, **EXACT) as saving:
        assert saving.restore() == 4
    train(other, its_optimizer, range(4, 7))
    assert equal(model, other)
    mine, theirs = optimizer.state_dict(), its_optimizer.state_dict()
    for key, entry in mine["state"].items():
        assert all(torch.equal(value, theirs["state"][key][name]) for name, value in entry.items())


# -- moments of models in half precision ----------------------------------------------------------


def dtypes(optimizer):
    return {
        key: {entry[key].dtype for entry in optimizer.state.values()} for key in ("exp_avg", "exp_avg_sq")
    }


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_moments_follow_the_parameters_that_the_optimizer_has(dtype, foreach):
    """Stepped before `wrap`, wrapped, and after `unwrap`: torch refuses moments of another dtype."""
    model = net().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=foreach)

    def step():
        optimizer.zero_grad()
        model(torch.ones(4, 16, dtype=model[0].weight.dtype)).float().square().mean().backward()
        optimizer.step()

    for wrap in (False, True, False, True):
        handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype) if wrap else None
        expected = torch.float32 if wrap else torch.bfloat16
        if optimizer.state:
            assert dtypes(optimizer) == {"exp_avg": {expected}, "exp_avg_sq": {expected}}
        step()
        if handle:
            handle.unwrap()


def test_a_draw_in_half_precision_takes_no_bit_of_weights_and_moments():
    model = net().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    handle = samo.wrap(model, optimizer, sparsity=0.5, pruner=bird(), dtype=torch.bfloat16)
    found = []
    for drawn in (False, True):
        if not drawn:
            train(model, optimizer, range(5))
        assert handle.end_epoch() is drawn
        found.append(
            {
                slot.name: [
                    one.detach().clone()
                    for one in (
                        slot.master,
                        *(optimizer.state[slot.master][key] for key in ("exp_avg", "exp_avg_sq")),
                    )
                ]
                for slot in handle.engine.slots
            }
        )
    masks = handle.masks()
    for before, after in pairwise(found):
        for name, tensors in before.items():
            kept = [one[masks[name]] if name in masks else one for one in tensors]
            assert all(torch.equal(*pair) for pair in zip(kept, after[name], strict=True))
