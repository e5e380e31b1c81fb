"""Noise that each tensor's own movement takes out again: a body is hardly trained beside its head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynaquant_core.config import LatticeConfig
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.store import CheckpointStore
from dynaquant_core.training import Checkpointer

LATTICE = Lattice()


def noise(decoded, state, name):
    """Squared error over the tensor's variance."""
    return float((decoded[name] - state[name]).square().mean() / state[name].var())


@pytest.mark.parametrize("far", [0.01, 0.1])
def test_noise_is_at_most_a_hundred_times_what_a_tensor_moved(far):
    torch.manual_seed(0)
    state = {name: torch.randn(64, 64) * 0.05 for name in ("body", "head")} | {"bias": torch.randn(64)}
    known = dict.fromkeys(state, 1e-6)
    hints = Hints(fisher=known, moved={"body": far, "head": 1.0, "bias": far})
    config = LatticeConfig(scale=4.0)
    bounded = dict(LATTICE.draft(state, None, config, hints).decoded)
    for name in ("body", "bias"):
        assert noise(bounded, state, name) < 1.5 * 100 * far**2, name
    assert noise(bounded, state, "head") > 1.0, "its steps go with the scale as before"
    free = dict(LATTICE.draft(state, None, config, Hints(fisher=known)).decoded)
    assert noise(free, state, "body") > 1.0, "nobody knows how far it moved"
    still = Hints(fisher=known, moved={"body": 0.0, "head": 1.0, "bias": 0.0})
    frozen = dict(LATTICE.draft(state, None, config, still).decoded)
    assert noise(frozen, state, "body") > 1.0, "what stands still takes its noise once"
    loose = dict(Lattice(max_noise=None).draft(state, None, config, hints).decoded)
    assert noise(loose, state, "body") > 1.0


def test_a_lattice_that_began_narrow_widens_as_its_tensor_moves_on():
    """Right after a restore hardly anything has moved; files must not stay large for that."""
    torch.manual_seed(0)
    state = {"body": torch.randn(128, 128) * 0.05}
    config, fisher = LatticeConfig(scale=1.0), {"body": 1e-6}
    early = LATTICE.draft(state, None, config, Hints(fisher=fisher, moved={"body": 0.001}))
    _, held = early.encode()
    moved = {"body": state["body"] + 0.02 * torch.randn(128, 128)}
    later = LATTICE.draft(moved, held, config, Hints(fisher=fisher, moved={"body": 0.4}))
    again = LATTICE.draft(moved, held, config, Hints(fisher=fisher, moved={"body": 0.001}))
    assert later.size < again.size / 2


def test_a_body_with_a_small_learning_rate_keeps_its_weights_through_restores(tmp_path):
    """A pre-trained body at a hundredth of the head's learning rate would drown in noise that never heals."""

    def run():
        torch.manual_seed(0)
        body, head = nn.Linear(64, 64), nn.Linear(64, 10)
        model = nn.Sequential(body, nn.Tanh(), head)
        groups = [{"params": body.parameters(), "lr": 1e-5}, {"params": head.parameters(), "lr": 3e-3}]
        return model, torch.optim.AdamW(groups)

    inputs, truth = torch.randn(512, 64, generator=torch.Generator().manual_seed(1)), None
    began = run()[0][0].weight.detach().clone()
    truth = (inputs @ torch.randn(64, 10, generator=torch.Generator().manual_seed(2))).argmax(1)
    for life in range(4):
        model, optimizer = run()

        def loss(model=model):
            return nn.functional.cross_entropy(model(inputs), truth)

        with Checkpointer(
            tmp_path, model, optimizer, every=20, evaluate=lambda loss=loss: loss().item()
        ) as saves:
            for _ in range(saves.restore(), 20 * (life + 1)):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()
                saves.step()
    apart = float((model[0].weight.detach() - began).norm() / began.norm())
    assert apart < 0.05, "it moved less than a hundredth"
    assert all(CheckpointStore(tmp_path).info(step).met for step in (20, 40, 60, 80))
