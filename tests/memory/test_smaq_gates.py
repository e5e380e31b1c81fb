"""Functions that pass a gradient or stop it, by where a value lies, do so as they would without SmaQ."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from dynaquant_core.memory import smaq
from tests.memory.nets import ONLY_MAPS

ROWS, WIDTH = 512, 64


def tailed(maps):
    """Levels far apart, a few values being far out: most others are nearer to zero than one of them."""
    return torch.where(torch.arange(ROWS)[:, None] % 200 == 0, 300 * maps, maps)


#: The maps' deviation is about one; so all that decides lies beyond the levels.
FAR = 2.5
GATES = {
    "softshrink": lambda maps: functional.softshrink(maps, FAR),
    "hardshrink": nn.Hardshrink(FAR),
    "threshold": lambda maps: functional.threshold(maps, threshold=FAR, value=0.0),
    "threshold in place": nn.Threshold(FAR, -1.0, inplace=True),
    "clamp": lambda maps: maps.clamp(-FAR, FAR),
    "clamp from below": lambda maps: torch.clamp(min=FAR, input=maps),
    "clip from above": lambda maps: maps.clip(max=-FAR),
    "clamp in place": lambda maps: (maps * 1).clamp_max_(FAR),
    "hardtanh": lambda maps: functional.hardtanh(maps, -FAR, max_val=FAR),
    "hardtanh in place": nn.Hardtanh(-FAR, FAR, inplace=True),
    "relu6": lambda maps: functional.relu6(6 / FAR * maps),
    "relu6 in place": lambda maps: nn.ReLU6(inplace=True)(6 / FAR * maps),
    "hardsigmoid": lambda maps: functional.hardsigmoid(3 / FAR * maps),
    "leaky": lambda maps: functional.leaky_relu(maps - FAR),
    "leaky in place": lambda maps: nn.LeakyReLU(0.1, inplace=True)(maps - FAR),
    "abs": lambda maps: tailed(maps).abs(),
    "abs in place": lambda maps: tailed(maps).abs_(),
    "abs of the language": lambda maps: abs(tailed(maps)),
    "abs by keyword": lambda maps: torch.absolute(input=tailed(maps)),
    "abs of zeros": lambda maps: (maps - maps.detach() * (torch.arange(ROWS)[:, None] > 99)).abs(),
    "total variation": lambda maps: (tailed(maps)[1:] - tailed(maps)[:-1]).abs().mean(),
    "first norm": lambda maps: tailed(maps).norm(1, -1),
    "first norm of vectors": lambda maps: torch.linalg.vector_norm(tailed(maps), ord=1),
    "first norm of rows": lambda maps: torch.linalg.norm(tailed(maps), 1, dim=-1),
    "to a sum of one": lambda maps: functional.normalize(tailed(maps), p=1, dim=0),
    "cut along a view": lambda maps: functional.hardtanh(maps.t()[3:50:2], -FAR, FAR),
    "bounds that are maps": lambda maps: maps.clamp(maps.roll(1, 0) - FAR, maps.roll(1, 0) + FAR),
}

#: A compiler calls no mode for them.
UNSEEN = ("threshold in place", "hardsigmoid", "abs of the language")


class Gated(nn.Module):
    """A layer and a gate; what its gradient goes back through is the gate alone."""

    def __init__(self, gate):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.gate = nn.Linear(32, WIDTH), gate
        nn.init.normal_(self.first.weight, std=32**-0.5)

    def forward(self, inputs):
        return self.gate(self.first(inputs))


def life(gate, *, coded, inputs=None, compiled=False):
    """(the first layer's gradient, what was packed)."""
    torch._dynamo.reset()
    model = Gated(gate)
    inputs = torch.randn(ROWS, 32, generator=torch.Generator().manual_seed(1)) if inputs is None else inputs
    with smaq.apply(model, **ONLY_MAPS) if coded else nullcontext() as handle:
        run = torch.compile(model, backend="aot_eager") if compiled else model
        out = run(inputs)
        out.backward(torch.randn(out.shape, generator=torch.Generator().manual_seed(2)))
        return model.first.weight.grad, handle and handle.report().get("saved")


@pytest.mark.filterwarnings("default:The .grad attribute")  # Dynamo asks hooked maps for it
@pytest.mark.parametrize(
    ("name", "compiled"),
    [(name, compiled) for name in GATES for compiled in (False, True) if not (compiled and name in UNSEEN)],
)
def test_a_threshold_far_out_passes_what_it_would(name, compiled):
    """Nothing beyond two deviations came back, and through a softshrink at three no gradient came at all."""
    exact, coded = (life(GATES[name], coded=coded, compiled=compiled and coded) for coded in (False, True))
    assert exact[0].any()
    assert torch.equal(coded[0], exact[0])


def test_it_takes_a_bit_a_value():
    saved = life(nn.ReLU6(), coded=True)[1]
    assert saved["tensors"] == 1
    assert saved["benefit"] > 31


def test_three_kinds_take_two_bits_a_value():
    saved = life(torch.abs, coded=True)[1]
    assert saved["tensors"] == 1
    assert 15.5 < saved["benefit"] < 16


def test_what_others_ask_of_the_same_map_is_packed_beside_it():
    """A product needs its values; the gate goes on telling the true ones apart."""
    exact, coded = (
        life(lambda maps: maps * maps + functional.hardtanh(maps, -FAR, FAR), coded=coded)
        for coded in (False, True)
    )
    assert coded[1]["tensors"] == 2
    assert coded[1]["raw_bytes"] == 4 * ROWS * WIDTH, "the memory behind both is one"
    assert (coded[0] - exact[0]).norm() < 0.2 * exact[0].norm()


def test_what_is_no_number_passes_as_it_would():
    inputs = torch.randn(ROWS, 32)
    inputs[0] = torch.nan

    def found(coded):
        model = Gated(nn.Hardtanh(-FAR, FAR))
        with smaq.apply(model, **ONLY_MAPS) if coded else nullcontext():
            model(inputs).square().sum().backward()
        return model.first.bias.grad, model.first.weight.grad

    for one, other in zip(found(True), found(False), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_in_other_dtypes(dtype):
    def gradient(coded):
        model = Gated(nn.Softshrink(FAR)).to(dtype)
        with smaq.apply(model, **ONLY_MAPS) if coded else nullcontext():
            model(inputs).sum().backward()
        return model.first.weight.grad

    inputs = torch.randn(ROWS, 32, dtype=dtype)
    exact, coded = (gradient(coded) for coded in (False, True))
    assert torch.equal(exact, coded)
