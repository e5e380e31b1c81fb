"""Weights whose memory does not run row by row: what is restored lies beside them as it did."""

import pytest
import torch
from torch import nn

from dynaquant_core.training.capture import capture
from dynaquant_core.training.restore import put_back
from dynaquant_core.training.subject import Subject
from tests.training.models import bits, seed_everything, stored

FUSED = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2, fused=True),
}


@pytest.mark.parametrize("keeps_order", [True, False], ids=["as stored", "row-major, from an older file"])
@pytest.mark.parametrize("make_optimizer", FUSED.values(), ids=FUSED)
def test_fused_optimizers_resume_where_weights_are_channels_last(make_optimizer, keeps_order):
    """Their kernels take the n-th value in memory of weight and moment together."""

    def build():
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
        return Subject(model.to(memory_format=torch.channels_last), make_optimizer(model.parameters()))

    def step(run):
        run.optimizer.zero_grad()
        run.model(torch.randn(2, 3, 8, 8)).square().mean().backward()
        run.optimizer.step()

    seed_everything()
    run = build()
    for _ in range(4):
        step(run)
    tree = stored(capture(run, 4))
    if not keeps_order:
        for entries in tree["optimizer"]["state"].values():
            entries |= {name: value.contiguous() for name, value in entries.items()}
    for _ in range(4):
        step(run)
    resumed = build()
    put_back(resumed, tree)
    for _ in range(4):
        step(resumed)
    assert bits(resumed.model.state_dict()) == bits(run.model.state_dict())
