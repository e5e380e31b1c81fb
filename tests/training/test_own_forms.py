"""Optimizers whose state has a form of its own: lists by kind, masters, moments of rows or of a low rank."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import dynaquant_core as dq
from dynaquant_core.training.optimizers import by_name, by_number, load


class Lists(torch.optim.Optimizer):
    """Adam over lists, as fused optimizers written by hand keep it: kind first, then parameter."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3})
        self.held = [parameter for group in self.param_groups for parameter in group["params"]]
        self.exp_avg = [torch.zeros_like(parameter) for parameter in self.held]
        self.exp_avg_sq = [torch.zeros_like(parameter) for parameter in self.held]
        self.noise = [torch.rand_like(parameter) for parameter in self.held]
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for parameter, first, second in zip(self.held, self.exp_avg, self.exp_avg_sq, strict=True):
            first.lerp_(parameter.grad, 0.1)
            second.mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
            mean, square = first / (1 - 0.9**self.steps), second / (1 - 0.999**self.steps)
            parameter.sub_(self.param_groups[0]["lr"] * mean / (square.sqrt() + 1e-8))

    def state_dict(self):
        kinds = {"exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq, "noise": self.noise}
        return {"step": self.steps} | {kind: list(tensors) for kind, tensors in kinds.items()}

    def load_state_dict(self, state):
        self.steps = state["step"]
        for kind in ("exp_avg", "exp_avg_sq", "noise"):
            for mine, stored in zip(getattr(self, kind), state[kind], strict=True):
                mine.copy_(stored)


class Masters(torch.optim.Optimizer):
    """Adam over float32 copies of bfloat16 weights, beside which they stand in its state."""

    def __init__(self, params):
        super().__init__(params, {})
        self.held = [parameter for group in self.param_groups for parameter in group["params"]]
        self.master = [parameter.detach().float().clone() for parameter in self.held]
        self.inner = torch.optim.Adam(self.master, lr=1e-3)

    @torch.no_grad()
    def step(self):
        for parameter, master in zip(self.held, self.master, strict=True):
            master.grad = parameter.grad.float()
        self.inner.step()
        for parameter, master in zip(self.held, self.master, strict=True):
            parameter.copy_(master)

    def state_dict(self):
        return {"optimizer_state_dict": self.inner.state_dict(), "fp32_from_fp16": [self.master]}

    def load_state_dict(self, state):
        self.inner.load_state_dict(state["optimizer_state_dict"])
        with torch.no_grad():
            for mine, stored in zip(self.master, state["fp32_from_fp16"][0], strict=True):
                mine.copy_(stored)


class Written(torch.optim.Optimizer):
    """Adam as it is written by hand, one parameter after the other."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state, gradient = self.state[parameter], parameter.grad
            basis = torch.eye(8, len(gradient)) if parameter.dim() == 2 else None
            gradient = self.seen(gradient, basis)
            square = self.squares(gradient)
            if not state:
                state |= {"step": 0, "exp_avg": torch.zeros_like(gradient), "exp_avg_sq": square.clone()}
            state["step"] += 1
            state["exp_avg"].lerp_(gradient, 0.1)
            state["exp_avg_sq"].lerp_(square, 0.01)
            move = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8)
            parameter.sub_(self.unseen(move, basis), alpha=self.param_groups[0]["lr"])

    def seen(self, gradient, basis):
        return gradient

    def unseen(self, move, basis):
        return move

    def squares(self, gradient):
        return gradient.square()


class Rows(Written):
    """One second moment a row."""

    def squares(self, gradient):
        return gradient.square().mean(-1, keepdim=True)


class LowRank(Written):
    """Moments of eight directions of a matrix."""

    def seen(self, gradient, basis):
        return gradient if basis is None else basis @ gradient

    def unseen(self, move, basis):
        return move if basis is None else basis.T @ move


class Wide(Written):
    """Moments in float32 beside weights of half the width, signs in bytes, and a word."""

    def seen(self, gradient, basis):
        return gradient.float()

    @torch.no_grad()
    def step(self):
        super().step()
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter] |= {"signs": (parameter.grad > 0).byte(), "rule": "adam"}


class Counted(Written):
    """With a count of its own beside the parameters' states, as MADGRAD has it."""

    @torch.no_grad()
    def step(self):
        super().step()
        self.state["k"] = self.state.get("k", torch.tensor([0])) + 1


class Mixed(torch.optim.AdamW):
    """Made from one of torch's: matrices have a momentum, vectors what that keeps."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if parameter.dim() == 2:
                state.setdefault("momentum_buffer", torch.zeros_like(parameter)).mul_(0.9).add_(
                    parameter.grad
                )
                parameter.sub_(state["momentum_buffer"], alpha=1e-2)
            else:
                first = state.setdefault("exp_avg", torch.zeros_like(parameter))
                parameter.sub_(first.lerp_(parameter.grad, 0.1), alpha=1e-2)
            state["step"] = state.get("step", torch.tensor(0.0)) + 1


def built(kind, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).to(dtype)
    return model, kind(model.parameters())


def losses(model, optimizer, checkpoints, count):
    generator = torch.Generator().manual_seed(1)
    inputs, targets = (torch.randn(64, 64, generator=generator) for _ in range(2))
    found = []
    for _ in range(count):
        loss = (model(inputs.to(model[0].weight.dtype)).float() - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checkpoints.step()
        found.append(loss.item())
    return found


def test_second_moments_in_lists_by_kind_stay_positive_and_unknown_entries_exact(tmp_path: Path) -> None:
    """One that noise has made negative makes every weight a NaN at the next step."""
    model, optimizer = built(Lists)
    with dq.Checkpointer(tmp_path, model, optimizer, every=50) as checkpoints:
        before = losses(model, optimizer, checkpoints, 50)
    again, other = built(Lists)
    other.noise = [torch.zeros_like(noise) for noise in other.noise]
    with dq.Checkpointer(tmp_path, again, other, every=50) as checkpoints:
        assert checkpoints.restore() == 50
        pairs = zip(optimizer.exp_avg_sq, other.exp_avg_sq, strict=True)
        assert all((now[then > 0] > 0).all() and (now >= 0).all() for then, now in pairs)
        assert all(map(torch.equal, optimizer.noise, other.noise))
        after = losses(again, other, checkpoints, 10)
    assert not torch.equal(model[0].weight, again[0].weight)  # so weights are quantised
    assert all(math.isfinite(loss) for loss in after)
    assert max(after) < before[0]


def test_masters_in_an_optimizers_own_form_come_back_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = built(Masters, torch.bfloat16)
    with dq.Checkpointer(tmp_path, model, optimizer, every=20) as checkpoints:
        losses(model, optimizer, checkpoints, 20)
    again, other = built(Masters, torch.bfloat16)
    with dq.Checkpointer(tmp_path, again, other) as checkpoints:
        assert checkpoints.restore() == 20
    assert all(map(torch.equal, optimizer.master, other.master))


@pytest.mark.parametrize("model", [{}, {"model": {"fc.weight": torch.randn(64, 64)}}])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda square: {"opt": {"exp_avg_sq": {"fc.weight": square}, "step": 3}},
        lambda square: {"optimizer.state.exp_avg_sq.decoder.fc.weight": square},
        lambda square: {"nu": {"fc": square}, "mu": {"fc": square.clone()}, "count": 3},
        lambda square: {"optimizer": {"v": {"fc.weight": square}}},
        lambda square: {"generator_optimizer_state": [square]},
        lambda square: {"optimizerG": {"v": [square]}},
    ],
)
def test_second_moments_by_kind_in_a_file_stay_positive(tmp_path: Path, optimizer, model) -> None:
    square = torch.randn(64, 64) ** 2
    dq.save_file(optimizer(square) | model, tmp_path / "x.dq")
    found = dq.load_file(tmp_path / "x.dq")
    while not isinstance(found, torch.Tensor):
        found = next(iter(found.values() if isinstance(found, dict) else found))
    assert (found[square > 0] > 0).all()
    assert ((found - square).abs() <= 0.096 * square + 1e-9).all()


@pytest.mark.parametrize("kind", [Rows, LowRank, Mixed, Counted])
def test_a_run_with_moments_of_any_shape_goes_on_as_if_it_had_not_stopped(tmp_path: Path, kind) -> None:
    """It was saved for hours and refused by restore(): torch takes what the class itself has made."""
    exact = {"exact": ("*",), "moments": "exact"}
    model, optimizer = built(kind)
    with dq.Checkpointer(tmp_path / "whole", model, optimizer, every=100) as checkpoints:
        losses(model, optimizer, checkpoints, 8)
    halved, other = built(kind)
    with dq.Checkpointer(tmp_path / "run", halved, other, every=4, **exact) as checkpoints:
        losses(halved, other, checkpoints, 4)
    resumed, last = built(kind)
    with dq.Checkpointer(tmp_path / "run", resumed, last, every=4, **exact) as checkpoints:
        assert checkpoints.restore() == 4
        losses(resumed, last, checkpoints, 4)
    assert all(map(torch.equal, model.parameters(), resumed.parameters()))
    assert last.state.get("k") == optimizer.state.get("k")


def test_a_count_may_have_the_name_of_a_weight():
    weight, again = (nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    optimizer, other = Counted([weight]), Counted([again])
    weight.grad = torch.ones(4, 4)
    optimizer.step()
    load(other, by_number(by_name(optimizer, {weight: ("k",)}), other, {again: ("k",)}, "optimizer"))
    assert other.state["k"] == optimizer.state["k"]
    assert alike(optimizer.state[weight], other.state[again])


def alike(left, right):
    """Whether two parameters' states are the same, to the dtype and the last bit."""
    assert {name: type(value) for name, value in left.items()} == {
        name: type(value) for name, value in right.items()
    }
    return all(
        value.dtype == right[name].dtype and torch.equal(value, right[name])
        if isinstance(value, torch.Tensor)
        else value == right[name]
        for name, value in left.items()
    )


@pytest.mark.parametrize(
    ("kind", "dtype"), [(Wide, torch.float16), (Wide, torch.bfloat16), (torch.optim.NAdam, torch.float64)]
)
def test_a_state_of_another_dtype_than_its_weights_comes_back_in_its_own(tmp_path: Path, kind, dtype) -> None:
    """Torch casts all of it to the weights': in float16 small second moments are zeros."""
    exact = {"exact": ("*",), "moments": "exact"}
    model, optimizer = built(kind, dtype)
    with dq.Checkpointer(tmp_path, model, optimizer, every=4, **exact) as checkpoints:
        losses(model, optimizer, checkpoints, 4)
    resumed, last = built(kind, dtype)
    with dq.Checkpointer(tmp_path, resumed, last, **exact) as checkpoints:
        assert checkpoints.restore() == 4
        for parameter, same in zip(model.parameters(), resumed.parameters(), strict=True):
            assert alike(optimizer.state[parameter], last.state[same])
        after = losses(resumed, last, checkpoints, 4)
    with dq.Checkpointer(tmp_path / "other", model, optimizer) as checkpoints:
        assert after == losses(model, optimizer, checkpoints, 4)
    assert all(map(torch.equal, model.parameters(), resumed.parameters()))


@pytest.mark.parametrize("moments", ["8bit", "compact", "minimal", "sparse", "second"])
@pytest.mark.parametrize("kind", [Rows, LowRank, Mixed])
def test_moments_of_any_shape_under_every_policy(tmp_path: Path, kind, moments) -> None:
    model, optimizer = built(kind)
    with dq.Checkpointer(tmp_path, model, optimizer, every=20, moments=moments) as checkpoints:
        before = losses(model, optimizer, checkpoints, 40)
    again, other = built(kind)
    with dq.Checkpointer(tmp_path, again, other, moments=moments) as checkpoints:
        assert checkpoints.restore() == 40
        for parameter, same in zip(model.parameters(), again.parameters(), strict=True):
            then, now = optimizer.state[parameter], other.state[same]
            assert {name: torch.as_tensor(value).shape for name, value in then.items()} == {
                name: torch.as_tensor(value).shape for name, value in now.items()
            }
            if "exp_avg_sq" in then:
                square = then["exp_avg_sq"]
                assert (now["exp_avg_sq"][square > 0] > 0).all()
        after = losses(again, other, checkpoints, 10)
    assert after[0] < before[-1] * 1.02
    assert all(loss < before[0] for loss in after)
