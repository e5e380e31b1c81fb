"""In float32 SAMO is masked dense training, bit for bit."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from dynaquant_core.errors import ConfigError
from dynaquant_core.memory import samo
from tests.memory.samo_nets import OPTIMIZERS, DenseMasked, conv, equal, gpt, loss_of, twin


def train_both(model, optimizer, dense, steps=12, accumulate=1, schedulers=()):
    for step in range(steps):
        for part in range(accumulate):
            loss_of(model, step * accumulate + part).backward()
            loss_of(dense.model, step * accumulate + part).backward()
        optimizer.step()
        dense.step()
        for scheduler in schedulers:
            scheduler.step()
        optimizer.zero_grad()
        dense.optimizer.zero_grad()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("build", [gpt, conv])
def test_weights_equal_masked_dense_training_bit_for_bit(build, name):
    model = build()
    other = twin(model)
    optimizer = OPTIMIZERS[name](model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.8, dtype=torch.float32)
    dense = DenseMasked(other, OPTIMIZERS[name], handle.masks())
    train_both(model, optimizer, dense)
    assert equal(model, other)
    assert all(not mask.all() for mask in handle.masks().values())


def test_accumulated_gradients_and_a_scheduler_that_holds_the_optimizer():
    model = gpt()
    other = twin(model)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    scheduler = CosineAnnealingLR(optimizer, 12)
    handle = samo.wrap(model, optimizer, sparsity=0.9, dtype=torch.float32)
    dense = DenseMasked(other, OPTIMIZERS["adamw"], handle.masks())
    train_both(
        model, optimizer, dense, accumulate=3, schedulers=(scheduler, CosineAnnealingLR(dense.optimizer, 12))
    )
    assert optimizer.param_groups[0]["lr"] < 1e-4
    assert equal(model, other)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_models_own_zero_grad_clears_what_the_optimizer_sees(set_to_none):
    model = gpt()
    other = twin(model)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.9, dtype=torch.float32)
    dense = DenseMasked(other, OPTIMIZERS["adam"], handle.masks())
    for step in range(4):
        model.zero_grad(set_to_none=set_to_none)
        other.zero_grad()
        copy.deepcopy(model).zero_grad()  # a copy has no part in it
        loss_of(model, step).backward()
        loss_of(other, step).backward()
        copy.deepcopy(model).zero_grad()
        optimizer.step()
        dense.step()
    assert equal(model, other)
    handle.unwrap()
    assert "zero_grad" not in vars(model)


def test_zero_grad_that_keeps_the_memory_and_that_throws_a_batch_away():
    model = gpt()
    other = twin(model)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.9, dtype=torch.float32)
    dense = DenseMasked(other, OPTIMIZERS["adam"], handle.masks())
    for step in range(6):
        for one, opt in ((model, optimizer), (other, dense.optimizer)):
            loss_of(one, 1000 + step).backward()  # thrown away
            opt.zero_grad(set_to_none=step % 2 == 0)
            loss_of(one, step).backward()
        optimizer.step()
        dense.step()
        for opt in (optimizer, dense.optimizer):
            opt.zero_grad(set_to_none=step % 3 == 0)
    assert equal(model, other)


def test_wrapped_in_mid_training_moments_go_on_at_the_places_kept():
    model = conv()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    other = twin(model)
    before = optimizer.state_dict()  # its inner dictionaries are the live ones: wrap must not write into them
    optimizer.zero_grad()
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.float32)
    dense = DenseMasked(other, OPTIMIZERS["adamw"], handle.masks())
    dense.optimizer.load_state_dict(copy.deepcopy(before))
    train_both(model, optimizer, dense)
    assert equal(model, other)
    handle.unwrap()
    assert {one for group in optimizer.param_groups for one in group["params"]} == set(model.parameters())
    mask, moments = handle.masks()["head.weight"], optimizer.state[model.head.weight]
    expected = dense.optimizer.state[other.head.weight]["exp_avg"]
    assert torch.equal(moments["exp_avg"], expected.masked_fill(~mask, 0))


@pytest.mark.parametrize("layout", ["channels last", "transposed"])
def test_weights_that_do_not_lie_in_rows_are_written_too(layout):
    model = conv()
    if layout == "channels last":
        model = model.to(memory_format=torch.channels_last)
    else:
        model.head.weight = nn.Parameter(model.head.weight.detach().t().contiguous().t())
    assert not all(one.is_contiguous() for one in model.parameters())
    other = twin(model)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.7, dtype=torch.float32)
    before = {name: one.clone() for name, one in model.named_parameters()}
    dense = DenseMasked(other, OPTIMIZERS["sgd"], handle.masks())
    train_both(model, optimizer, dense)
    assert equal(model, other)
    assert not any(torch.equal(before[name], one) for name, one in model.named_parameters())


def test_what_was_unwrapped_is_the_users_own_and_unwrapping_again_does_nothing():
    """A ``finally`` that unwraps once more must not put weights of before back."""
    model = conv()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    handle = samo.wrap(model, optimizer, pruner=samo.EarlyBird(window=1))
    handle.end_epoch()
    handle.unwrap()
    for step in range(2):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    before = copy.deepcopy(model)
    handle.unwrap()
    with pytest.raises(ConfigError, match=r"end_epoch after unwrap\(\)"):
        handle.end_epoch()
    assert equal(model, before)
    assert {one.dtype for one in model.parameters()} == {torch.float32}


def test_frozen_parameters_and_those_of_nobody_stay_as_they_are():
    model = gpt()
    model.blocks[0].requires_grad_(requires_grad=False)
    frozen = {name: one.clone() for name, one in model.blocks[0].named_parameters()}
    optimizer = torch.optim.Adam(
        [one for name, one in model.named_parameters() if not name.startswith("norm")], lr=0.01
    )
    handle = samo.wrap(model, optimizer, sparsity=0.9, dtype=torch.float32)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    assert all(torch.equal(one, frozen[name]) for name, one in model.blocks[0].named_parameters())
    assert not any(name.startswith("blocks.0") for name in handle.masks())
    assert model.norm.weight.grad is not None
    assert bool((model.norm.weight == 1).all())


def test_an_optimizer_that_asks_a_closure_several_times():
    """LBFGS moves its vectors between evaluations: the model has to follow within one step."""
    model = gpt()
    other = twin(model)
    make = lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4, history_size=3)  # noqa: E731
    optimizer = make(model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.9, dtype=torch.float32)
    masks = handle.masks()
    reference = make(other.parameters())
    by_name = dict(other.named_parameters())

    def closure(one, opt, masked):
        opt.zero_grad()
        loss = loss_of(one, 3)
        loss.backward()
        if masked:
            for name, mask in masks.items():
                by_name[name].grad.masked_fill_(~mask, 0)
        return loss

    with torch.no_grad():
        for name, mask in masks.items():
            by_name[name].masked_fill_(~mask, 0)
    losses = []
    for _ in range(3):
        losses.append(float(optimizer.step(lambda: closure(model, optimizer, masked=False)).detach()))
        reference.step(lambda: closure(other, reference, masked=True))
    assert losses[-1] < losses[0]
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4), name  # dot products are summed in another order


def test_dense_gradients_are_gone_when_backward_returns():
    model = gpt()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.9, dtype=torch.float32)
    loss_of(model, 0).backward()
    by_name = dict(model.named_parameters())
    assert all(by_name[name].grad is None for name in handle.masks())
    kept = [one for one in handle.parameters() if one.dim() == 1]
    assert all(one.grad.shape == one.shape for one in kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("what", ["wrap", "unwrap"])
def test_gradients_that_wait_for_their_step_are_not_lost(what, dtype):
    """All of them: where only biases kept theirs, a step would be half of one."""
    model = conv()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype) if what == "unwrap" else None
    loss_of(model, 1).backward()
    if handle:
        handle.unwrap()
        expected = {name: one.grad.clone() for name, one in model.named_parameters()}
    else:
        expected = {name: one.grad.clone() for name, one in model.named_parameters()}
        handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype)
    before = {name: one.detach().float().clone() for name, one in model.named_parameters()}
    optimizer.step()
    for name, one in model.named_parameters():
        stepped = (before[name] - 0.05 * expected[name]) * (before[name] != 0 if one.dim() > 1 else 1)
        assert torch.allclose(one.float(), stepped, rtol=1e-3 if dtype == torch.float16 else 1e-6, atol=1e-6)
        assert one.dim() == 1 or not torch.equal(one.float(), before[name])


def test_an_optimizer_is_not_deep_copied_while_it_is_wrapped():
    """The copy's vectors would belong to no model; its steps would change nothing."""
    model = conv()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.float32)
    with pytest.raises(ConfigError, match="copy would train nothing"):
        copy.deepcopy((model, optimizer))
    handle.unwrap()
    copied, its = copy.deepcopy((model, optimizer))
    before = copied.head.weight.detach().clone()
    loss_of(copied, 1).backward()
    its.step()
    assert not torch.equal(copied.head.weight, before)


def test_a_deep_copy_of_the_model_is_a_model_of_its_own():
    model = gpt()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    samo.wrap(model, optimizer, sparsity=0.9, dtype=torch.bfloat16)
    average = twin(model)
    before = {name: one.clone() for name, one in average.state_dict().items()}
    loss_of(model, 0).backward()
    optimizer.step()
    assert all(torch.equal(one, before[name]) for name, one in average.state_dict().items())
    assert not equal(model, average)
    model_before = {name: one.clone() for name, one in model.state_dict().items()}
    average.load_state_dict({name: torch.ones_like(one) for name, one in before.items()})
    assert all(torch.equal(one, model_before[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize("unwrapped", [True, False])
def test_a_wrapped_model_that_nobody_holds_is_freed(unwrapped):
    """A sweep wraps one model after another."""
    model = conv()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    handle = samo.wrap(model, optimizer)
    loss_of(model, 0).backward()
    optimizer.step()
    if unwrapped:
        handle.unwrap()
    gone = weakref.ref(model.head.weight)
    del model, optimizer, handle
    gc.collect()
    assert gone() is None
