"""Second moments that no product of rows and columns tells: an optimizer goes on as from exact ones."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynaquant_core.methods.moments import moments_method
from tests.methods.moment_states import chain, write

POLICIES = ("minimal", "sparse", "second")
#: Units a task; steps before the restore.
UNITS, STEPS = 24, 100


def blocks_of_two_scales() -> Tensor:
    """Two tasks whose gradients never meet, one in units a thousand times the other's."""
    bell = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
    bell[:64, 64:] *= 1e-3
    bell[64:, :64] *= 1e-3
    bell[64:, 64:] *= 1e-3
    return 1e-4 * bell.square() + 1e-14


def one_outlier() -> Tensor:
    """One corrupt sample, one feature, one label."""
    values = 1e-4 * (0.5 + torch.rand(128, 128, generator=torch.Generator().manual_seed(1)))
    values[3, 7] = 1e5
    return values


def many_blocks() -> Tensor:
    """A layer of sixty-four groups, written as a dense one: equal scales, and far from rank one."""
    return 1e-5 * torch.kron(
        torch.eye(64), 0.5 + torch.rand(4, 4, generator=torch.Generator().manual_seed(2))
    )


@pytest.mark.parametrize("make", [blocks_of_two_scales, one_outlier, many_blocks])
@pytest.mark.parametrize("name", POLICIES)
def test_a_second_moment_is_not_far_too_small(name, make):
    exact = {"state.w.exp_avg_sq": make()}
    policy = moments_method(name)
    found = policy.decode(write(policy, exact)[0], None).state()["state.w.exp_avg_sq"]
    shares = (found / exact["state.w.exp_avg_sq"])[exact["state.w.exp_avg_sq"] > 0]
    assert shares.quantile(0.01) > 1 / 16


class TwoTasks:
    """One dense layer for two tasks of different units; a sample is of one of them."""

    def __init__(self, make: type[Optimizer], **options: float) -> None:
        self.net = nn.Linear(2 * UNITS, 2 * UNITS, bias=False)
        nn.init.zeros_(self.net.weight)
        self.optimizer = make(self.net.parameters(), lr=1e-3, **options)
        bell = torch.randn(2, UNITS, UNITS, generator=torch.Generator().manual_seed(3))
        self.truth = torch.block_diag(*(0.1 * bell))
        self.units = torch.tensor([1000.0, 1.0]).repeat_interleave(UNITS)

    def train(self, first: int, last: int) -> float:
        """Steps; returns what is left of the second task, against nothing learnt."""
        second = torch.arange(128) % 2 == 1
        mine = torch.where(second[:, None], torch.arange(2 * UNITS) >= UNITS, torch.arange(2 * UNITS) < UNITS)
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            inputs = torch.randn(128, 2 * UNITS, generator=generator) * self.units * mine
            loss = ((self.net(inputs) - inputs @ self.truth.T) * mine).square().sum(1).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        left = (self.net.weight.detach() - self.truth)[UNITS:, UNITS:]
        return float(left.square().mean() / self.truth[UNITS:, UNITS:].square().mean())


def left_after(policy: str, make: type[Optimizer], options: dict[str, float]) -> list[float]:
    """What is left of the second task one, two and ten steps after a restore of the optimizer."""
    tasks = TwoTasks(make, **options)
    tasks.train(0, STEPS)
    state = tasks.optimizer.state_dict()
    if policy != "exact":
        moments = {
            f"state.0.{kind}": tensor
            for kind, tensor in state["state"][0].items()
            if isinstance(tensor, Tensor) and tensor.dim()
        }
        method = moments_method(policy)
        for name, tensor in method.decode(write(method, moments)[0], None).items():
            moments[name].copy_(tensor)
        tasks.optimizer.load_state_dict(state)
    return [tasks.train(STEPS + first, STEPS + last) for first, last in pairwise((0, 1, 2, 10))]


@pytest.mark.parametrize("policy", ["minimal", "sparse"])
@pytest.mark.parametrize(
    ("make", "options"),
    [(torch.optim.AdamW, {"weight_decay": 0.0}), (torch.optim.Adamax, {}), (torch.optim.RMSprop, {})],
)
def test_a_layer_of_two_scales_goes_on_as_with_exact_moments(policy, make, options):
    exact, found = left_after("exact", make, options), left_after(policy, make, options)
    assert max(abs(ours / theirs - 1) for ours, theirs in zip(found, exact, strict=True)) < 0.1


@pytest.mark.parametrize("name", POLICIES)
def test_ordinary_second_moments_stay_a_product(name):
    state = chain(length=2)[-1]
    state["state.outer.exp_avg_sq"] = torch.rand(300, 1).exp() * torch.randn(300, 200).square()
    policy = moments_method(name)
    large = [key for key in state if key.endswith("exp_avg_sq") and state[key].dim() > 1]
    assert {policy.encoded(key, state[key]).letter for key in large if state[key].numel() > 10_000} <= set(
        "pq"
    )
