"""Centred RMSprop takes a root of ``square_avg - grad_avg ** 2``: a restore must leave it one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import dynaquant_core as dq
from dynaquant_core.state import centred_names, flatten
from tests.training.models import bits

INPUTS = torch.randn(64, 32, generator=torch.Generator().manual_seed(6))
TARGETS = INPUTS @ torch.randn(32, 4, generator=torch.Generator().manual_seed(7))
#: Nothing was ever seen of these inputs: the gradients of their weights are what decay makes of them.
BORDER = 8
STEPS, MORE = 60, 40


def build(dtype=torch.float32, **options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4)).to(dtype)
    return model, torch.optim.RMSprop(model.parameters(), alpha=0.9, centered=True, **options)


def full_batch(model, step):
    return functional.mse_loss(model(INPUTS), TARGETS)


def mini_batch(model, step):
    rows = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(step))
    dtype = model[0].weight.dtype
    inputs = torch.cat((torch.zeros(16, BORDER), INPUTS[rows, BORDER:]), 1)
    return functional.mse_loss(model(inputs.to(dtype)), TARGETS[rows].to(dtype))


def train(model, optimizer, checkpoints, loss_of, steps):
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        checkpoints.step()
        losses.append(float(loss.detach()))
    return losses


def resumed(folder, loss_of, options, **settings):
    """The losses after a restore, and the optimizer's state as it was saved and as it came back."""
    model, optimizer = build(**options)
    with dq.Checkpointer(folder, model, optimizer, every=STEPS // 2, **settings) as checkpoints:
        train(model, optimizer, checkpoints, loss_of, range(STEPS))
    saved = optimizer.state_dict()["state"]
    model, optimizer = build(**options)
    with dq.Checkpointer(folder, model, optimizer, every=STEPS, **settings) as checkpoints:
        assert checkpoints.restore() == STEPS
        back = flatten(optimizer.state_dict()["state"])
        back = {leaf.name: leaf.tensor.clone() for leaf in back.leaves}
        losses = train(model, optimizer, checkpoints, loss_of, range(STEPS, STEPS + MORE))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    return losses, {leaf.name: leaf.tensor for leaf in flatten(saved).leaves}, back


@pytest.mark.parametrize(
    ("loss_of", "options"),
    [
        (full_batch, {"lr": 1e-5}),
        (full_batch, {"lr": 1e-5, "momentum": 0.5}),
        (mini_batch, {"lr": 1e-5, "weight_decay": 1e-2}),
        (mini_batch, {"lr": 1e-3, "weight_decay": 1e-2, "dtype": torch.bfloat16}),
    ],
    ids=["full batch", "momentum", "weight decay", "bfloat16"],
)
def test_a_restore_at_the_defaults_goes_on_as_with_exact_moments(tmp_path, loss_of, options):
    losses, saved, back = resumed(tmp_path / "default", loss_of, options)
    assert all(torch.isfinite(torch.tensor(losses)))
    for name, tensor in saved.items():
        if not name.endswith("momentum_buffer"):
            assert bits(back[name]) == bits(tensor), name
    exact, _, _ = resumed(tmp_path / "exact", loss_of, options, moments="exact")
    assert losses == (pytest.approx(exact, rel=1e-3) if "momentum" in options else exact)


def test_momentum_beside_them_still_takes_a_byte(tmp_path):
    _, saved, back = resumed(tmp_path, full_batch, {"lr": 1e-5, "momentum": 0.5})
    name = "0.momentum_buffer"
    assert not torch.equal(back[name], saved[name])
    assert torch.allclose(back[name], saved[name], rtol=0.05, atol=1e-4 * float(saved[name].abs().max()))


def test_they_are_found_by_where_they_lie():
    _, optimizer = build(lr=1e-5, momentum=0.5)
    plain = torch.optim.RMSprop([nn.Parameter(torch.ones(300))])
    for one in (optimizer, plain):
        for group in one.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        one.step()
    nested = {"centred": optimizer.state_dict(), "plain": plain.state_dict()}
    flat = {leaf.name: leaf.tensor for leaf in flatten(nested).leaves}
    wanted = {f"centred.state.{i}.{kind}" for i in range(4) for kind in ("square_avg", "grad_avg")}
    assert centred_names(flatten(nested).leaves) == wanted
    assert centred_names(flatten(flat).leaves) == wanted
    lists = {kind: [torch.ones(300), torch.ones(4, 4)] for kind in ("square_avg", "grad_avg")}
    found = centred_names(flatten({"optimizer": {**lists, "step": 3}}).leaves)
    assert found == {f"optimizer.{kind}.{number}" for kind in lists for number in (0, 1)}


def test_a_store_that_kept_less_goes_on_with_whole_ones(tmp_path):
    """A part with other tensors than in the checkpoint before stands alone: what is read was saved."""
    model, optimizer = build(lr=1e-5)
    for moments, last in (("minimal", 2), ("8bit", 4), ("8bit", 6)):
        with dq.Checkpointer(tmp_path, model, optimizer, every=2, moments=moments) as checkpoints:
            start = checkpoints.restore()
            train(model, optimizer, checkpoints, full_batch, range(start, last))
    tree = dq.CheckpointStore(tmp_path).load(6)["optimizer"]["state"]
    first = optimizer.state[model[0].weight]
    assert bits(tree["0.weight"]["grad_avg"]) == bits(first["grad_avg"])
    assert bits(tree["0.weight"]["square_avg"]) == bits(first["square_avg"])
    zeros = dq.CheckpointStore(tmp_path).load(2)["optimizer"]["state"]["0.weight"]["grad_avg"]
    assert not zeros.any()
