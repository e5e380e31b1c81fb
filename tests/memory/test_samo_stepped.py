"""Optimizers whose step goes past the compressed weights, and those that only seem to."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from dynaquant_core.errors import ConfigError, GradientError
from dynaquant_core.memory import samo
from tests.gloo import a_group_of_one

INPUTS = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))


class Around(Optimizer):
    """Steps another one, over lists of its own or over the same."""

    def __init__(self, base, *, shared=False, hidden=False):
        groups = (
            base.param_groups if shared else [{"params": list(one["params"])} for one in base.param_groups]
        )
        super().__init__(groups, {"lr": 0.01})
        self.inner = (lambda: [base]) if hidden else [base]

    def step(self, closure=None):
        for one in self.inner if isinstance(self.inner, list) else self.inner():
            one.step(closure)


class ThroughData(torch.optim.SGD):
    """As many optimizers of others write: torch counts nothing of it."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one.data.add_(one.grad, alpha=-group["lr"])


class Patient(torch.optim.SGD):
    """Leaves its first steps out, as SOAP does the first."""

    left = 3

    def step(self, closure=None):
        if self.left:
            self.left -= 1
            return None
        return super().step(closure)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def trained(model, optimizer, steps):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(INPUTS) - INPUTS[:, :4]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_an_optimizer_around_one_with_lists_of_its_own_is_refused_and_nothing_is_changed():
    """The one inside went on with the dense parameters, which have no gradients: nothing was trained."""
    model = net()
    around = Around(torch.optim.AdamW(model.parameters(), lr=0.01))
    with pytest.raises(ConfigError, match=r"Around steps an AdamW with a list of parameters of its own"):
        samo.wrap(model, around, sparsity=0.5)
    assert model[0].weight.dtype == torch.float32
    losses = trained(model, around, 5)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_that_shares_its_groups_trains(dtype):
    model = net()
    around = Around(torch.optim.AdamW(model.parameters(), lr=0.01), shared=True)
    samo.wrap(model, around, sparsity=0.5, dtype=dtype)
    losses = trained(model, around, 20)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_that_cannot_be_seen_to_go_past_the_weights_is_an_error_after_some_steps(dtype):
    model = net()
    around = Around(torch.optim.AdamW(model.parameters(), lr=0.01), hidden=True)
    samo.wrap(model, around, sparsity=0.5, dtype=dtype)
    with pytest.raises(GradientError, match=r"Around\.step\(\) .*steps something else"):
        trained(model, around, 10)


@pytest.mark.filterwarnings("ignore")  # torch's own, about its functional optimizers
def test_shards_of_an_optimizer_are_refused(tmp_path):
    from torch.distributed.optim import ZeroRedundancyOptimizer  # takes two seconds

    with a_group_of_one(tmp_path):
        model = net()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
        with pytest.raises(ConfigError, match=r"ZeroRedundancyOptimizer keeps .* on each rank"):
            samo.wrap(model, optimizer, sparsity=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: ThroughData(p, lr=0.05),
        lambda p: Patient(p, lr=0.05),
        lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    ],
    ids=["through data", "patient", "fused", "foreach"],
)
def test_a_step_that_torch_does_not_count_is_a_step(make, dtype):
    model = net()
    optimizer = make(model.parameters())
    samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype)
    losses = trained(model, optimizer, 20)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("why", ["rate of zero", "no gradient"])
def test_steps_that_have_nothing_to_move_are_none_of_them(why):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0 if why == "rate of zero" else 0.01, fused=True)
    samo.wrap(model, optimizer, sparsity=0.5)
    for _ in range(12):
        optimizer.zero_grad()
        (model(INPUTS).sum() * (0.0 if why == "no gradient" else 1.0)).backward()
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.01
    losses = trained(model, optimizer, 20)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_of_an_optimizer_inside_follow_its_weights_wherever_they_go(dtype):
    """Over `wrap` they were lost, and after a ticket those of other places met the vectors."""

    def life(around):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        optimizer = Around(optimizer, shared=True) if around else optimizer
        losses = trained(model, optimizer, 3)
        bird = samo.EarlyBird(window=1, distance=1.0)
        handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype, pruner=bird)
        losses += trained(model, optimizer, 3)
        assert any(handle.end_epoch() for _ in range(3))
        losses += trained(model, optimizer, 3)
        handle.unwrap()
        return losses + trained(model, optimizer, 3)

    assert life(around=True) == life(around=False)
