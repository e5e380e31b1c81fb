"""Optimizers of one's own, whose state is a plain dictionary: it comes back so that training can go on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynaquant_core as dq


class Adam:
    """As a training script writes it."""

    def __init__(self, model):
        self.weights = list(model.parameters())
        self.m = [torch.zeros_like(weight) for weight in self.weights]
        self.v = [torch.zeros_like(weight) for weight in self.weights]
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        for weight, m, v in zip(self.weights, self.m, self.v, strict=True):
            m.lerp_(weight.grad, 0.1)
            v.lerp_(weight.grad.square(), 0.001)
            root = (v / (1 - 0.999**self.t)).sqrt() + 1e-8
            weight -= 1e-3 * m / (1 - 0.9**self.t) / root


def train(model, optimizer, steps):
    for _ in range(steps):
        model.zero_grad()
        inputs = torch.randn(32, 64)
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("key", ["opt", "opt_state", "critic_opt", "adam", "helper"])
def test_its_averages_come_back_bit_for_bit(tmp_path, key):
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = Adam(model)
    train(model, optimizer, 20)
    held = {"m": optimizer.m, "v": optimizer.v, "t": optimizer.t}
    dq.CheckpointStore(tmp_path).save(20, {"model": model.state_dict(), key: held})
    state = dq.CheckpointStore(tmp_path).load()
    for kind in ("m", "v"):
        assert all(map(torch.equal, state[key][kind], held[kind]))
    model.load_state_dict(state["model"])
    optimizer.m, optimizer.v, optimizer.t = (state[key][kind] for kind in "mvt")
    train(model, optimizer, 1)
    assert model.weight.isfinite().all()
