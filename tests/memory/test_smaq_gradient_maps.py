"""Gradients of maps: coded as published, but where the clamp would cut off what a model learns from."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from dynaquant_core.memory import smaq
from tests.memory.nets import OFF, conv_net, images, train

GRADIENT_MAPS = OFF | {"gradient_maps": True}


def language_model(words):
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(words, 64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, words))


def words_of(step, words, count=256):
    """Words, and those that follow them."""
    follows = torch.randperm(words, generator=torch.Generator().manual_seed(0))
    given = torch.randint(0, words, (count,), generator=torch.Generator().manual_seed(step))
    return given, follows[given]


def test_a_language_model_learns_with_everything_coded():
    """The gradient of its logits is softmax less one at the label: clamped, next to nothing is left of it."""
    model = language_model(2000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with smaq.apply(model, optimizer):
        losses = [train(model, optimizer, words_of(step, 2000)) for step in range(120)]
    assert losses[0] > 7
    assert losses[-1] < 0.1


def gradients(words, settings, form="smaq", signs=1.0):
    """Of all parameters, and what was coded."""
    model = language_model(words)
    given, follows = words_of(0, words)
    with smaq.apply(model, **settings, format=form) as handle:
        (signs * functional.cross_entropy(model(given), follows, reduction="none")).mean().backward()
    return [parameter.grad for parameter in model.parameters()], handle.report()


#: As advantages in reinforcement learning, which are as often negative: what is cut off cancels in the sum.
ADVANTAGES = torch.randn(256, generator=torch.Generator().manual_seed(1)).sign()


@pytest.mark.parametrize(
    ("words", "signs"),
    [(10, 1.0), (64, 1.0), (300, 1.0), (2000, 1.0), (300, ADVANTAGES)],
    ids=["10", "64", "300", "2000", "300 of both signs"],
)
def test_the_gradient_of_logits_stays_exact(words, signs):
    exact, _ = gradients(words, OFF, signs=signs)
    coded, report = gradients(words, GRADIENT_MAPS, signs=signs)
    assert torch.equal(coded[-2], exact[-2]), "the last layer's weight sees it as the loss gave it"
    assert not torch.equal(coded[0], exact[0]), "others are coded"
    whole, part = (torch.cat([one.flatten() for one in some]) for some in (exact, coded))
    assert (part - whole).norm() < 0.25 * whole.norm()
    logits = 256 * words * 4
    assert logits < report["gradient map"]["stored_bytes"] < logits + 256 * (64 + 128 + 128), (
        "counted in full"
    )


@pytest.mark.parametrize("form", [{"name": "smaq", "keep_zeros": False}, "fp8_e4m3"])
def test_formats_that_are_compared_code_it(form):
    _, report = gradients(300, GRADIENT_MAPS, form)
    assert report["gradient map"]["benefit"] > 3.9


def test_all_gradient_maps_of_a_conv_net_are_coded():
    model = conv_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    with smaq.apply(model, optimizer, **GRADIENT_MAPS) as handle:
        for step in range(4):
            train(model, optimizer, images(step))
    assert handle.report()["gradient map"]["benefit"] > 4.5
