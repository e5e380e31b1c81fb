"""Attention under packed maps: what must fit together stays exact, and nothing else does."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from dynaquant_core.memory import smaq
from tests.memory.nets import ONLY_MAPS

ROWS, LENGTH, WIDTH, HEADS = 4, 64, 64, 4


class Fused(nn.Module):
    """Heads side by side, as language models have them; with a mask as Hugging Face's, or none."""

    def __init__(self, *, masked=False):
        super().__init__()
        self.inner, self.outer, self.masked = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), masked

    def forward(self, inputs):
        heads = self.inner(inputs).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mask = None
        if self.masked:
            lowest = torch.finfo(heads.dtype).min
            mask = torch.full((LENGTH, LENGTH), lowest, dtype=heads.dtype).triu(1).expand(ROWS, 1, -1, -1)
        mixed = functional.scaled_dot_product_attention(*heads, attn_mask=mask)
        return self.outer(mixed.transpose(1, 2).flatten(2))


class Joined(nn.Module):
    """Torch's own layer, which reaches the kernel by a function of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.inner = self.layer.in_proj_weight

    def forward(self, inputs):
        return self.layer(inputs, inputs, inputs, need_weights=False)[0]


class Checkpointed(Fused):
    """Recomputes its attention in backward."""

    def forward(self, inputs):
        return checkpoint(super().forward, inputs, use_reentrant=False)


class Net(nn.Module):
    """Attention behind a layer whose map is packed, with scores far apart."""

    def __init__(self, make):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.attention, self.last = nn.Linear(WIDTH, WIDTH), make(), nn.Linear(WIDTH, 8)
        inner = self.attention.inner
        with torch.no_grad():
            getattr(inner, "weight", inner)[: 2 * WIDTH].mul_(15)

    def forward(self, inputs):
        return self.last(self.attention(self.first(inputs).tanh()).tanh())


def gradient(make, how="plain", *, coded):
    torch._dynamo.reset()
    net, inputs = Net(make), torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    handle = smaq.apply(net, **ONLY_MAPS) if coded else None
    run = torch.compile(net, backend=how) if how in ("eager", "aot_eager") else net
    half = torch.autocast("cpu", dtype=torch.bfloat16) if how == "autocast" else nullcontext()
    with half:
        out = run(inputs)
    out.float().square().mean().backward()
    if handle:
        assert handle.report()["saved"]["tensors"] >= 2, "the maps around attention are packed"
        handle.remove()
        assert not torch.overrides._get_current_function_mode_stack(), "nothing is left on the thread"
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])


@pytest.mark.filterwarnings("default:The .grad attribute")  # Dynamo asks maps between two graphs for it
@pytest.mark.parametrize(
    ("make", "how"),
    [
        (Fused, "plain"),
        (lambda: Fused(masked=True), "plain"),
        (Joined, "plain"),
        (Checkpointed, "plain"),
        (Fused, "autocast"),
        (Fused, "eager"),
        (Joined, "aot_eager"),
    ],
    ids=["fused", "masked", "joined", "checkpointed", "autocast", "compiled", "compiled joined"],
)
def test_gradients_through_attention_come_near(make, how):
    """Packed apart, q, k and the logarithm of their sum stand in an exponent where they no longer cancel."""
    exact = gradient(make, how, coded=False)
    assert (gradient(make, how, coded=True) - exact).norm() < 0.1 * exact.norm()


def test_probabilities_of_attention_that_is_not_fused_are_packed():
    """They are most of what it saves, and plain values."""
    net, inputs = Net(Fused), torch.randn(ROWS, LENGTH, WIDTH)
    with sdpa_kernel(SDPBackend.MATH), smaq.apply(net, **ONLY_MAPS) as handle:
        out = net(inputs)
        scores = ROWS * HEADS * LENGTH * LENGTH * 4
        assert handle.report()["memory"]["live_raw"] >= scores
        out.sum().backward()


def test_what_attention_holds_exact_is_not_held_packed_as_well():
    net, inputs = Net(Fused), torch.randn(ROWS, LENGTH, WIDTH)
    net.attention.outer = nn.Identity()
    with smaq.apply(net, **ONLY_MAPS) as handle:
        out = net(inputs)
        # of both tanh, which the linear layers behind them save as well; not of attention's output
        assert handle.report()["saved"]["tensors"] == 2
        out.sum().backward()
