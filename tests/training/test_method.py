"""A run goes on with the method of the checkpoint that it restored, unless another one is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynaquant_core as dq
from tests.training.models import build, evaluate_net, seed_everything, train

PAPER = {"name": "dynaquant", "profile": "paper"}


def life(folder, **options):
    """Restores what is there, trains two steps and saves; the info, and the rules of the search."""
    seed_everything()
    model, optimizer = build()
    with dq.Checkpointer(folder, model, optimizer, every=2, evaluate=evaluate_net, **options) as checkpoints:
        checkpoints.restore()
        train(model, optimizer, checkpoints, 2)
        return checkpoints.wait(), checkpoints._chooser.manager.profile


def test_a_fresh_run_takes_the_lattice_and_keeps_it(tmp_path):
    for _ in range(2):
        info, profile = life(tmp_path)
        assert (info.method, info.met, profile) == ("lattice", True, None)
    assert isinstance(info.config, dq.LatticeConfig)


@pytest.mark.parametrize("method", ["dynaquant", "exact", {"name": "dynaquant", "sigma": 0.2}])
def test_a_restored_run_keeps_its_method_and_options(tmp_path, method):
    first, _ = life(tmp_path, method=method)
    second, _ = life(tmp_path)
    assert (second.method, second.options) == (first.method, first.options)
    assert second.met
    third, _ = life(tmp_path, method="lattice")
    assert (third.method, third.kind, third.met) == ("lattice", "key", True)
    assert life(tmp_path)[0].method == "lattice"


def test_the_published_rules_of_the_search_come_back_with_the_method(tmp_path):
    seed_everything()
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, method=PAPER) as checkpoints:
        checkpoints.save()
    with dq.Checkpointer(tmp_path, model, optimizer) as checkpoints:
        assert checkpoints._chooser.manager.profile is None
        checkpoints.restore()
        assert checkpoints._chooser.manager.profile == "paper"


def test_without_evaluate_the_fixed_point_of_the_lattice_is_said_once(tmp_path, caplog):
    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=1) as checkpoints:
        train(model, optimizer, checkpoints, 3)
        info = checkpoints.wait()
    assert info.config == dq.LatticeConfig(scale=0.5)
    assert [record.message for record in caplog.records if "LatticeConfig(scale=0.5)" in record.message] == [
        "no evaluate: every checkpoint is stored with the fixed configuration LatticeConfig(scale=0.5)"
    ]


class Spectral(nn.Module):
    """Multiplies frequencies by complex weights, as Fourier neural operators do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.frequencies = nn.Parameter(0.1 * torch.randn(33, 8, dtype=torch.complex64))

    def forward(self, inputs):
        return torch.fft.irfft(torch.fft.rfft(self.layer(inputs)) * self.frequencies.sum(1), n=64)


@pytest.mark.parametrize("method", [None, "dynaquant", "excp", "zstd"])
def test_complex_weights_under_adam_are_kept_exact(tmp_path, method):
    """Their first moments were offered as gradients, and the first save was refused."""

    def build():
        torch.manual_seed(0)
        model = Spectral()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    model, optimizer = build()
    with dq.Checkpointer(tmp_path, model, optimizer, every=3, method=method) as checkpointer:
        for _ in range(6):
            inputs = torch.randn(32, 64)
            optimizer.zero_grad()
            (model(inputs) - inputs).square().mean().backward()
            optimizer.step()
            checkpointer.step()
        checkpointer.save()
    fresh, other = build()
    with dq.Checkpointer(tmp_path, fresh, other, every=3) as checkpointer:
        assert checkpointer.restore() == 6
    assert torch.equal(fresh.frequencies, model.frequencies)
