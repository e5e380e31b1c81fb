"""A forward pass that takes a derivative itself: of packed maps it is rounded, and that is said."""

from __future__ import annotations

import logging
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from dynaquant_core.memory import smaq
from tests.memory.nets import ONLY_MAPS

SAID = "takes a derivative through packed maps"


class Field(nn.Module):
    """An energy and its forces."""

    def __init__(self, *, kept, graph=True):
        super().__init__()
        torch.manual_seed(0)
        self.kept, self.graph = kept, graph
        self.energy = nn.Sequential(
            nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
        )

    def forward(self, positions):
        positions = positions.detach().requires_grad_()
        exact = saved_tensors_hooks(torch.Tensor.detach, lambda one: one) if self.kept else nullcontext()
        with exact:
            energy = self.energy(positions).sum()
        return -torch.autograd.grad(energy, positions, create_graph=self.graph, retain_graph=True)[0]


def forces(*, kept, graph=True, coded=True):
    """Those of two passes, and what was packed."""
    model, positions = Field(kept=kept, graph=graph), torch.randn(512, 3)
    handle = smaq.apply(model, **ONLY_MAPS)
    if not coded:
        handle.remove()
    found = torch.stack([model(positions) for _ in range(2)])
    if graph:
        found.square().mean().backward()
    handle.remove()
    return found.detach(), handle.report()


def test_forces_through_packed_maps_are_said_to_be_rounded(caplog):
    with caplog.at_level(logging.WARNING):
        forces(kept=False)
    assert sum(SAID in record.getMessage() for record in caplog.records) == 1


def test_forces_of_an_energy_that_is_kept_are_exact_and_what_they_save_is_packed(caplog):
    torch.manual_seed(2)
    with caplog.at_level(logging.WARNING):
        found, report = forces(kept=True)
    assert report["saved"]["tensors"] >= 4
    torch.manual_seed(2)
    assert torch.equal(found, forces(kept=True, coded=False)[0])
    assert SAID not in caplog.text


@pytest.mark.parametrize("where", ["after forward", "of no graph", "own loop"])
def test_other_backward_passes_are_no_derivatives_of_forward(caplog, where):
    """A penalty on gradients outside of the model, a step that runs as a forward pass, a loop that packs."""
    model, inputs = Field(kept=False).energy, torch.randn(512, 3, requires_grad=True)
    with caplog.at_level(logging.WARNING):
        if where == "of no graph":
            forces(kept=False, graph=False)
        else:
            with smaq.apply(model, **ONLY_MAPS) as handle:
                with handle.packing(inputs) if where == "own loop" else nullcontext():
                    (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
                slope.square().mean().backward()
    assert SAID not in caplog.text
