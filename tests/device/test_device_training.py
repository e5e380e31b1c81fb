"""Checkpointer and collector around a training on a device: what is saved, restored and averaged."""

from __future__ import annotations

import copy
import shutil
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional

import dynaquant_core as dq
from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.experiments.models.resnet import ResNet
from tests.device.places import EVERYWHERE, everywhere
from tests.training.models import bits

EXACT = {"exact": ("*",), "moments": "exact"}


class Net(nn.Module):
    """Draws random numbers on its device (dropout) and changes buffers (batch norm)."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(64, 4)

    def forward(self, x):
        return self.head(self.body(x))


def build(device, seed=0):
    torch.manual_seed(seed)
    model = Net().to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def one_step(model, optimizer):
    device = next(model.parameters()).device
    x, y = torch.randn(16, 32, device=device), torch.randint(4, (16,), device=device)
    optimizer.zero_grad()
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()


@EVERYWHERE
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, device):
    model, optimizer = build(device)
    with dq.Checkpointer(tmp_path / "a", model, optimizer, every=5, evaluate=None, **EXACT) as checkpoints:
        for _ in range(5):
            one_step(model, optimizer)
            checkpoints.step()
        checkpoints.wait()
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        for _ in range(5):
            one_step(model, optimizer)
    again, second = build(device, seed=5)
    with dq.Checkpointer(tmp_path / "b", again, second, every=5, evaluate=None, **EXACT) as resumed:
        assert resumed.restore() == 5
        for _ in range(5):
            one_step(again, second)
    assert next(again.parameters()).device.type == device
    assert bits(again.state_dict()) == bits(model.state_dict())
    assert bits(second.state_dict()["state"]) == bits(optimizer.state_dict()["state"])


def tokens(step, device):
    start = torch.randint(0, 31, (16, 1), generator=torch.Generator().manual_seed(step))
    return ((start + 3 * torch.arange(33)) % 31).to(device)


def text_loss(model, step):
    rows = tokens(step, next(model.parameters()).device)
    return functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def image_loss(model, step):
    draw = torch.Generator().manual_seed(step)
    x = torch.randn(16, 3, 32, 32, generator=draw)
    y = (x.mean((1, 2, 3)) * 100).long().clamp(-2, 2) + 2
    device = next(model.parameters()).device
    return functional.cross_entropy(model(x.to(device)), y.to(device))


RUNS = {
    "gpt": (lambda: CharGPT(31, layers=2, width=64, heads=2, context=32), text_loss),
    "resnet": (lambda: ResNet(10, widths=(8, 16, 32), depths=1), image_loss),
}


@pytest.mark.parametrize(
    ("device", "name", "method", "autocast"),
    everywhere([("gpt", "lattice", True)], list(product(RUNS, ["lattice", "dynaquant"], [False, True]))),
)
def test_checkpoints_of_a_training_meet_their_threshold_and_leave_it_alone(
    tmp_path, name, method, autocast, device
):
    make, loss_of = RUNS[name]
    torch.manual_seed(0)
    model = make().to(device)
    twin = copy.deepcopy(model)

    def train(net, after):
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, fused=device == "cuda")
        checkpoints = after(net, optimizer)
        for step in range(24):
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                loss = loss_of(net, step)
            loss.backward()
            optimizer.step()
            if checkpoints is not None:
                checkpoints.step()
        if checkpoints is not None:
            checkpoints.close()

    def evaluate(net):
        return [float(loss_of(net, 1000 + part).detach()) for part in range(4)]

    def checkpointer(net, optimizer):
        return dq.Checkpointer(
            tmp_path, net, optimizer, every=8, evaluate=evaluate, threshold=0.05, method=method, keep_last=9
        )

    train(model, checkpointer)
    train(twin, lambda *_: None)
    if device == "cpu" or name == "gpt":  # cuDNN's backward passes need not repeat themselves
        assert bits(model.state_dict()) == bits(twin.state_dict()), "saving changes nothing in a run"
    store = dq.CheckpointStore(tmp_path)
    assert store.steps() == [8, 16, 24]
    exact = sum(evaluate(model)) / 4
    model.load_state_dict(store.load(24)["model"])
    assert abs(sum(evaluate(model)) / 4 - exact) <= 0.051 * abs(exact)
