"""What autograd saves and SmaQ does not pack: it could not be, or would spoil gradients."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from dynaquant_core.errors import GradientError
from dynaquant_core.memory import smaq
from dynaquant_core.memory.smaq.batches import tensors_of
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


@dataclass
class Batch:
    pixels: torch.Tensor


@dataclass(slots=True)
class Slotted:
    pixels: torch.Tensor


class Nested:
    """As of a library of graphs: knows itself, and the model that it is for."""

    def __init__(self, pixels, model):
        self.inside, self.me, self.model = SimpleNamespace(held=[Batch(pixels)]), self, model

    @property
    def pixels(self):
        return self.inside.held[0].pixels

    @property
    def never_asked(self):
        raise RuntimeError("what an object works out is not its batch")


class Listed(list):
    """With a tensor beside its items."""


def listed(pixels):
    made = Listed([1, 2])
    made.pixels = pixels
    return made


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 8)

    def forward(self, batch):
        return self.layer(batch["pixels"] if isinstance(batch, UserDict) else batch.pixels)


@pytest.mark.parametrize(
    "made",
    {
        "mapping": lambda pixels, _: UserDict(pixels=pixels),
        "dataclass": lambda pixels, _: Batch(pixels),
        "dataclass with slots": lambda pixels, _: Slotted(pixels),
        "namespace": lambda pixels, _: SimpleNamespace(pixels=pixels),
        "objects in each other": Nested,
        "list with a name": lambda pixels, _: listed(pixels),
    }.items(),
    ids=lambda made: made[0],
)
def test_a_batch_of_any_kind_is_left_alone(made):
    """Those of processors, tokenizers and graphs are no dictionaries of Python's own."""
    net = Net()
    with smaq.apply(net, **ONLY_MAPS) as handle:
        net(made[1](torch.randn(64, 64), net)).sum().backward()
    assert "saved" not in handle.report()


def test_no_batch_is_searched_for_tensors_of_a_model():
    """A teacher that an argument holds may be large, and its parameters are no batch."""
    held = SimpleNamespace(teacher=nn.Linear(4, 4), kind=nn.Linear, library=torch)
    assert list(tensors_of(held)) == []


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


class Judged(nn.Module):
    """Logits that are its inputs and a little more, and a loss of them inside."""

    def __init__(self, loss):
        super().__init__()
        self.layer, self.loss = nn.Linear(32, 32), loss
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(32))
            self.layer.bias.zero_()

    def forward(self, inputs, labels):
        return self.loss(self.layer(inputs), labels)


#: Of logits and 0 or 1.
OF_BITS = {
    "bits": functional.binary_cross_entropy_with_logits,
    "bits of torch": lambda logits, labels: torch.binary_cross_entropy_with_logits(
        logits, labels, reduction=1
    ),
    "probabilities": lambda logits, labels: functional.binary_cross_entropy(logits.sigmoid(), labels),
    "layer": nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0)),
    "soft margin": lambda logits, labels: functional.soft_margin_loss(logits, 2 * labels - 1),
    "labels": functional.multilabel_soft_margin_loss,
    "logarithms": lambda logits, labels: (
        -(labels * functional.logsigmoid(logits) + (1 - labels) * functional.logsigmoid(-logits)).mean()
    ),
}

#: Of values and what they should be.
OF_VALUES = {
    "squares": functional.mse_loss,
    "smooth": functional.smooth_l1_loss,
    "huber": functional.huber_loss,
    "counts": lambda values, wanted: functional.poisson_nll_loss(values, wanted.exp()),
    "divergence": lambda values, wanted: functional.kl_div(
        values.log_softmax(1), wanted.softmax(1), reduction="batchmean"
    ),
    "angles": lambda values, wanted: functional.cosine_embedding_loss(
        values, wanted, torch.ones(len(values))
    ),
    "cosines": lambda values, wanted: 1 - functional.cosine_similarity(values, wanted).mean(),
}


@pytest.mark.parametrize("name", [*OF_BITS, *OF_VALUES])
def test_a_loss_inside_of_the_model_gives_what_is_right_no_gradient_of_what_is_wrong(name):
    """Rare and sure ones lie far out, and clamped they are wrong: gradients were 8 to 200 times too large."""
    draw = torch.Generator().manual_seed(0)
    if name in OF_BITS:
        labels = (torch.rand(256, 32, generator=draw) < 0.01).float()
        inputs = 14 * labels - 7 + 0.3 * torch.randn(256, 32, generator=draw)
    else:
        labels = torch.randn(256, 32, generator=draw)
        labels[torch.rand(256, 32, generator=draw) < 0.02] *= 5
        inputs = labels + 0.01 * torch.randn(256, 32, generator=draw)
    exact, coded = (judged(name, inputs, labels, coded=coded) for coded in (False, True))
    assert (coded - exact).norm() < 0.3 * exact.norm()


def judged(name, inputs, labels, *, coded):
    model = Judged((OF_BITS | OF_VALUES)[name])
    handle = smaq.apply(model, **ONLY_MAPS)
    if not coded:
        handle.remove()
    model(inputs, labels).backward()
    handle.remove()
    return model.layer.weight.grad


def test_what_a_loss_holds_as_it_is_is_not_held_packed_as_well():
    """A sigmoid keeps what it gives before the loss behind it says that it needs it."""

    class Encoder(nn.Sequential):
        def forward(self, inputs):
            return functional.binary_cross_entropy(super().forward(inputs), inputs)

    model, inputs = Encoder(nn.Linear(64, 64), nn.Sigmoid()), torch.rand(64, 64)
    with smaq.apply(model, **ONLY_MAPS) as handle:
        loss = model(inputs)
        memory = handle.report()["memory"]
        assert memory["peak"] > 0
        assert memory["live"] == memory["live_raw"] == 0
        loss.backward()
        del loss
        assert handle.report()["memory"]["live"] == handle.report()["memory"]["live_raw"] == 0


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


class Leaky(nn.Module):
    """Rectified with slopes that are drawn; autograd saves what they are before they are drawn."""

    def __init__(self, rectify):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.rectify, self.last = nn.Linear(64, 96), rectify, nn.Linear(96, 4)

    def forward(self, inputs):
        return self.last(self.rectify(self.first(inputs)))


RECTIFIERS = {
    "layer": nn.RReLU(),
    "layer in place": nn.RReLU(inplace=True),
    "function": lambda maps: functional.rrelu(maps, training=True),
    "of torch": lambda maps: torch.rrelu(maps, training=True),
    "of torch in place": lambda maps: torch.rrelu_(maps, training=True),
    "with its noise": lambda maps: torch._C._nn.rrelu_with_noise(
        maps, torch.empty_like(maps), 0.125, 1 / 3, training=True
    ),
    "operator": lambda maps: torch.ops.aten.rrelu_with_noise(
        maps, torch.empty_like(maps), 0.125, 1 / 3, training=True
    ),
}


@pytest.mark.parametrize("rectify", RECTIFIERS)
def test_slopes_that_are_drawn_after_they_were_saved_are_those_that_were_drawn(rectify):
    """Packed, they were whatever the memory had held, and a training was not a number in five steps."""
    found, inputs = [], torch.randn(64, 64)
    for coded in (False, True):
        model = Leaky(RECTIFIERS[rectify])
        handle = smaq.apply(model, **ONLY_MAPS, format="fp32")
        if not coded:
            handle.remove()
        torch.manual_seed(1)
        model(inputs).square().sum().backward()
        handle.remove()
        found.append(model.first.weight.grad)
    assert torch.equal(*found)
