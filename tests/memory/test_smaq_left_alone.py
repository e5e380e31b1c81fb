"""What autograd saves and SmaQ does not pack: it could not be, or would spoil gradients."""

from __future__ import annotations

from collections import UserDict

import pytest
import torch
from torch import nn
from torch.nn import functional

from dynaquant_core.errors import GradientError
from dynaquant_core.memory import smaq
from tests.memory.nets import ONLY_MAPS, mlp, rows
from tests.packed import PackedMomentum


def test_masks_integers_small_ones_and_parameters_are_left_alone():
    model = nn.Sequential(nn.Embedding(50, 40), nn.Flatten(), nn.Linear(400, 4))
    with smaq.apply(model, **ONLY_MAPS, format="fp8_e5m2", smallest=5000) as handle:
        weight = model[2].weight
        out = model(torch.arange(40).view(4, 10))  # the linear layer saves 1600 values and its weight
        node = out.grad_fn
        assert node._saved_mat2.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()
        out.sum().backward()
        assert "saved" not in handle.report()


def test_a_batch_in_any_mapping_is_left_alone():
    """Those of processors and tokenizers are no dictionaries of Python's own."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 8)

        def forward(self, batch):
            return self.layer(batch["pixels"])

    net = Net()
    with smaq.apply(net, **ONLY_MAPS) as handle:
        net(UserDict(pixels=torch.randn(64, 64))).sum().backward()
    assert "saved" not in handle.report()


class WithLoss(nn.Module):
    """Takes its labels along, as language models of Hugging Face do; classes are the second dimension."""

    def __init__(self, after):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.after = nn.Linear(64, 48), after

    def forward(self, inputs, labels):
        logits = self.layer(inputs).unflatten(0, (-1, *self.after)).movedim(-1, 1)
        return functional.cross_entropy(logits, labels.view(-1, *self.after))


@pytest.mark.parametrize("after", [(), (4, 8)])
def test_a_loss_inside_of_the_model_keeps_its_gradient_where_predictions_are_sure(after):
    """Coded, a probability of one would be clamped to next to none, and a learnt label be learnt again."""
    inputs = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
    found = []
    for coded in (False, True):
        model = WithLoss(after)
        labels = model.layer(inputs).argmax(1)
        with torch.no_grad():
            model.layer.weight.mul_(20)
        handle = smaq.apply(model, **ONLY_MAPS)
        if not coded:
            handle.remove()
        model(inputs.requires_grad_(), labels).backward()
        handle.remove()
        found.append(model.layer.weight.grad)
    exact, coded = found
    assert (coded - exact).norm() < 0.05 * exact.norm()


class Normed(nn.Module):
    """A layer norm behind a table whose padding is zero."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.norm = nn.Embedding(300, 64, padding_idx=0), nn.LayerNorm(64)
        self.last = nn.Linear(64, 64)

    def forward(self, tokens):
        return self.last(self.norm(self.table(tokens)))


def test_rows_of_zeros_leave_the_gradients_of_others_alone():
    """A layer norm's reciprocal deviations of padding are hundreds of times the others'."""
    draw = torch.Generator().manual_seed(1)
    tokens, weights = torch.randint(1, 300, (32, 64), generator=draw), torch.randn(32, 64, 64, generator=draw)
    tokens[:, 40:] = 0
    found = []
    for coded in (False, True):
        model = Normed()
        handle = smaq.apply(model, **ONLY_MAPS)
        if not coded:
            handle.remove()
        (model(tokens) * weights * (tokens != 0)[..., None]).square().mean().backward()
        handle.remove()
        found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    exact, coded = found
    assert (coded - exact).norm() < 0.1 * exact.norm()


def test_evaluation_and_no_grad_are_untouched():
    model = mlp()
    with smaq.apply(model, **ONLY_MAPS) as handle:
        with torch.no_grad():
            model(rows()[0])
        model.eval()
        model(rows()[0]).sum().backward()
    assert "saved" not in handle.report()


@pytest.mark.parametrize("what", ["weight", "small weight", "batch"])
def test_what_is_left_alone_may_not_be_written_to_before_backward(what):
    """Autograd looks for that only where there are no hooks; gradients would be those of other values."""
    model, (batch, _) = mlp(), rows()
    with smaq.apply(model, **ONLY_MAPS):
        out = model(batch).square().sum()
        with torch.no_grad():
            {"weight": model[2].weight, "small weight": model[4].weight, "batch": batch}[what].mul_(0.5)
        with pytest.raises(GradientError, match="written to in place after it was saved"):
            out.backward()
        model(batch).square().sum().backward()


def test_averages_that_an_optimizer_packs_itself_are_left_alone():
    model = nn.Linear(64, 64)
    optimizer = PackedMomentum(model.parameters())
    model(torch.randn(64, 64)).square().mean().backward()
    with smaq.apply(model, optimizer) as handle:
        optimizer.step()
        assert "weight" in handle.report()
        assert "state" not in handle.report()
