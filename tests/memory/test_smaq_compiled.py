"""SmaQ under `torch.compile`: a compiled model, one that breaks into several graphs, a compiled step."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.testing
from torch import nn

from dynaquant_core.memory import smaq
from tests.memory.nets import OFF, ONLY_MAPS, mlp, rows, train


@pytest.mark.filterwarnings("default:The .grad attribute")  # Dynamo asks hooked maps for it
@pytest.mark.parametrize("feature_maps", ["saved", "inline"])
@pytest.mark.parametrize("first", ["compile", "apply"])
def test_a_compiled_model_is_coded_alike(feature_maps, first):
    def life(compiled):
        torch._dynamo.reset()
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if compiled and first == "compile":
            model = torch.compile(model, backend="eager")
        given = {"feature_maps": feature_maps, "gradient_maps": feature_maps == "inline"}
        with smaq.apply(model, optimizer, **given) as handle:
            run = torch.compile(model, backend="eager") if compiled and first == "apply" else model
            losses = [train(run, optimizer, rows(step)) for step in range(2)]
        role = "saved" if feature_maps == "saved" else "map"
        return losses, handle.report()[role]["tensors"]

    assert life(compiled=True) == life(compiled=False)


class Broken(nn.Module):
    """Has a part that no compiler takes, so that its maps are saved between two graphs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.body, self.last = nn.Linear(64, 32), nn.LSTM(32, 32), nn.Linear(32, 4)

    def forward(self, inputs):
        return self.last(self.body(self.first(inputs).relu())[0])


@pytest.mark.filterwarnings("default:The .grad attribute")
def test_a_compiled_model_that_breaks_inside_is_packed_alike():
    def life(compiled):
        torch._dynamo.reset()
        model = Broken()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with smaq.apply(model, optimizer, **OFF | {"feature_maps": "saved"}) as handle:
            run = torch.compile(model, backend="eager") if compiled else model
            losses = [train(run, optimizer, rows(step)) for step in range(2)]
        return losses, handle.report()["saved"]["tensors"]

    assert life(compiled=True) == life(compiled=False)


@pytest.mark.filterwarnings("default:`torch.jit.script_method` is deprecated")  # of what Dynamo imports
def test_a_compiled_step_is_coded_alike():
    def life(compiled):
        torch._dynamo.reset()
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        with smaq.apply(model, optimizer, **OFF | {"gradients": True, "weights": True}) as handle:
            model(rows()[0]).square().mean().backward()
            step()
        return model[0].weight.unique().numel(), handle.report()["gradient"]["tensors"]

    assert life(compiled=True) == life(compiled=False)


class Layers(nn.Module):
    """A model with a forward of its own: torch 2.7 takes nothing of its own classes behind a hook."""

    def __init__(self):
        super().__init__()
        self.layers = mlp()

    def forward(self, inputs):
        return self.layers(inputs)


def test_a_layer_is_a_part_of_one_graph():
    """What is asked of every operation must not keep a compiler from taking it."""
    counted = torch._dynamo.testing.CompileCounter()
    torch._dynamo.reset()
    model = Layers()
    with smaq.apply(model, **ONLY_MAPS):
        torch.compile(model, backend=counted)(rows()[0]).sum().backward()
    assert (counted.frame_count, counted.op_count) == (1, len(model.layers))


def test_only_what_is_trained_cuts_a_graph():
    """Models take the largest of positions and masks, too, of which nothing is saved."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, inputs):
            most = inputs.argmax(1).max() + torch.softmax(inputs, 1).amax()
            return self.layer(inputs) * most

    counted = torch._dynamo.testing.CompileCounter()
    torch._dynamo.reset()
    model = Positions()
    with smaq.apply(model, **ONLY_MAPS):
        torch.compile(model, backend=counted)(rows()[0]).sum().backward()
    assert counted.frame_count == 1
