"""Operations whose backward compares what they saved, divides one by another or exponentiates a difference.

Those of torch's list of derivatives, each against the exact gradient of all that it is given.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynaquant_core.memory import smaq
from tests.memory.nets import ONLY_MAPS

DRAW = torch.Generator().manual_seed(0)
ONE, OTHER = torch.randn(64, 64, generator=DRAW), torch.randn(64, 64, generator=DRAW)
POSITIVE = ONE.abs() + 0.1
NEAR = ONE + 1e-3 * OTHER
CAP = torch.full((64, 64), 2.5)

#: One value in a hundred is far out, as those that a cap is there for.
TAILED = ONE.clone()
TAILED.view(-1)[::100] = 20 + ONE.view(-1)[::100].abs()

#: Logarithms of probabilities, an eighth of them of what cannot be.
BARRED = torch.where(torch.arange(64) < 56, ONE.log_softmax(1), torch.tensor(-1e4))


def fake_quantize(maps, width, offset):
    return torch._fake_quantize_learnable_per_tensor_affine(maps, width, offset, -127, 127, 1.0)


def fake_quantize_rows(maps, widths, offsets):
    return torch._fake_quantize_learnable_per_channel_affine(maps, widths, offsets, 0, -127, 127, 1.0)


OPERATIONS = {
    "maximum": (torch.maximum, ONE, NEAR),
    "minimum": (torch.minimum, ONE, NEAR),
    "fmax": (torch.fmax, ONE, NEAR),
    "fmin": (torch.fmin, ONE, NEAR),
    "max of two": (torch.max, ONE, NEAR),
    "method": (torch.Tensor.maximum, ONE, NEAR),
    "maximum as a cap": (lambda maps: torch.maximum(maps, CAP), ONE),
    "minimum as a cap": (lambda maps: torch.minimum(maps, torch.tensor(6.0)), TAILED),
    "logaddexp": (torch.logaddexp, 10 * ONE, 10 * OTHER),
    "logaddexp of what cannot be": (torch.logaddexp, BARRED, OTHER.log_softmax(1)),
    "logaddexp2": (torch.logaddexp2, 10 * ONE, 10 * OTHER),
    "atan2": (torch.atan2, ONE, OTHER),
    "atan2 of some far out": (torch.atan2, TAILED, TAILED.flip(0)),
    "hypot": (torch.hypot, TAILED, OTHER),
    "logit of sure shares": (torch.logit, torch.sigmoid(4 * ONE.clamp(-3, 3))),
    "copysign": (torch.copysign, TAILED, OTHER),
    "fmod": (torch.fmod, 10 * TAILED, POSITIVE),
    "remainder": (torch.remainder, 10 * TAILED, POSITIVE),
    "xlogy": (torch.xlogy, TAILED, POSITIVE),
    "xlog1py": (torch.special.xlog1py, TAILED, POSITIVE),
    "incomplete gamma": (lambda maps: torch.special.gammainc(POSITIVE, maps), POSITIVE),
    "its rest": (lambda maps: torch.igammac(POSITIVE, maps), TAILED.abs() + 0.1),
    "operator of the rest": (lambda one, other: one % other, 10 * TAILED, POSITIVE),
    "learned width": (fake_quantize, ONE, torch.tensor([2.5 / 127]), torch.zeros(1)),
    "learned widths": (fake_quantize_rows, ONE, torch.full((64,), 2.5 / 127), torch.zeros(64)),
}


class Model(nn.Module):
    def __init__(self, operation):
        super().__init__()
        self.operation, self.nothing = operation, nn.Parameter(torch.zeros(()))

    def forward(self, *inputs):
        return self.operation(*(one + self.nothing for one in inputs))  # none of the batch


def gradients(operation, inputs, *, coded):
    given = [one.clone().requires_grad_() for one in inputs]
    model = Model(operation)
    handle = smaq.apply(model, **ONLY_MAPS) if coded else None
    out = model(*given)
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    if handle:
        handle.remove()
    return [one.grad for one in given]


@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients_are_the_exact_ones(name):
    """Clamped at two deviations, what is far out of one map lay on the wrong side of the other."""
    operation, *inputs = OPERATIONS[name]
    exact, coded = (gradients(operation, inputs, coded=coded) for coded in (False, True))
    for true, one in zip(exact, coded, strict=True):
        assert (one - true).norm() <= 1e-5 * true.norm()


def test_a_lattice_of_logarithms_is_learned():
    """The forward algorithm by ``logaddexp``; most states cannot be reached at first."""

    class Lattice(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.scores = nn.Linear(32, 64)

        def forward(self, inputs):
            emitted = self.scores(inputs).log_softmax(-1)
            barred = torch.full((len(inputs), 64), -1e4)
            found = torch.cat([emitted[:, 0, :1], barred[:, 1:]], 1)
            for step in range(1, inputs.shape[1]):
                found = (
                    torch.logaddexp(found, torch.cat([barred[:, :1], found[:, :-1]], 1)) + emitted[:, step]
                )
            return -found[:, -1].mean()

    inputs, found = torch.randn(32, 80, 32, generator=torch.Generator().manual_seed(2)), []
    for coded in (False, True):
        model = Lattice()
        handle = smaq.apply(model, **ONLY_MAPS) if coded else None
        model(inputs).backward()
        if handle:
            handle.remove()
        found.append(model.scores.weight.grad)
    assert (found[1] - found[0]).norm() < 0.1 * found[0].norm()
