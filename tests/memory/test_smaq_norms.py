"""Statistics that norms save stay exact, or a few blank samples would spoil the gradients of all."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from dynaquant_core.memory import smaq

BATCH, CHANNELS = 32, 32


class Normed(nn.Module):
    """A convolution, a norm, a convolution."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False), norm
        self.last = nn.Conv2d(CHANNELS, 4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps of 4 channels."""
        return self.last(self.norm(self.first(images)).relu())


class ByKeyword(nn.Module):
    """A group norm that names its arguments."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Normed."""
        return functional.group_norm(input=images, num_groups=CHANNELS)


def gradient(norm: nn.Module, images: torch.Tensor, *, coded: bool) -> torch.Tensor:
    """Of the first convolution; 32 samples of 32 groups make statistics large enough to be packed."""
    torch.manual_seed(0)
    model = Normed(norm)
    handle = smaq.apply(
        model, None, gradient_maps=False, gradients=False, weights=False, optimizer_state=False
    )
    if not coded:
        handle.remove()
    found = model(images)
    (found * torch.randn(found.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    if coded:
        assert handle.report()["saved"]["tensors"] >= 2  # the maps themselves are packed
    handle.remove()
    return model.first.weight.grad


@pytest.mark.parametrize(
    "norm", [nn.GroupNorm(CHANNELS, CHANNELS), nn.InstanceNorm2d(CHANNELS), ByKeyword()], ids=repr
)
def test_blank_images_leave_the_gradients_of_the_others(norm: nn.Module) -> None:
    images = torch.randn(BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    images[:4] = 0  # packed, their deviations made the gradient 83% wrong
    exact, coded = (gradient(norm, images, coded=which) for which in (False, True))
    assert float((exact - coded).norm() / exact.norm()) < 0.1


def test_dead_channels_of_a_batch_norm_leave_the_gradients_of_the_others() -> None:
    def grown(*, coded: bool) -> torch.Tensor:
        torch.manual_seed(0)
        wide = nn.Linear(32, 2048, bias=False)
        model = nn.Sequential(wide, nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 4))
        with torch.no_grad():
            wide.weight[:5] = 0
        handle = smaq.apply(
            model, None, gradient_maps=False, gradients=False, weights=False, optimizer_state=False
        )
        if not coded:
            handle.remove()
        inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
        model(inputs).square().sum().backward()
        handle.remove()
        assert inputs.grad is not None
        return inputs.grad

    exact, coded = grown(coded=False), grown(coded=True)
    assert float((exact - coded).norm() / exact.norm()) < 0.1  # it was 17%


class Padded(nn.Module):
    """Tokens, a few of which are padding, normed as language models norm queries too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 64, padding_idx=0)
        self.queries, self.last = nn.Linear(64, 64, bias=False), nn.Linear(64, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of 8 kinds."""
        return self.last(normed(self.queries(normed(self.embed(tokens)))))


def normed(states: torch.Tensor) -> torch.Tensor:
    """By hand, as a Llama, a Gemma and a Qwen do it."""
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("padding", [1, 6])
def test_a_few_tokens_of_padding_leave_the_gradients_of_the_others(padding: int) -> None:
    tokens = torch.randint(1, 50, (512,), generator=torch.Generator().manual_seed(1))
    tokens[100 : 100 + padding] = 0  # packed, they were small values: times the thousand of their norm

    def grown(*, coded: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = Padded()
        handle = smaq.apply(
            model, None, gradient_maps=False, gradients=False, weights=False, optimizer_state=False
        )
        if not coded:
            handle.remove()
        found = model(tokens)
        (found * torch.randn(found.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
        handle.remove()
        assert model.queries.weight.grad is not None
        return model.queries.weight.grad

    exact, coded = grown(coded=False), grown(coded=True)
    assert float((exact - coded).norm() / exact.norm()) < 0.3
