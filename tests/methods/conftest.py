"""States that look like training: layers of different scales and tails that move a little each step."""

from __future__ import annotations

import pytest
import torch


def layers(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    far = torch.rand(256, 64, generator=torch.Generator().manual_seed(seed)) < 0.01
    return {
        "wte.weight": normal(65, 64, scale=0.02),
        "attn.qkv.weight": normal(192, 64, scale=0.05),
        "mlp.0.weight": normal(256, 64, scale=0.01) * (1 + 3 * far.to(dtype)),
        "mlp.2.weight": normal(64, 256, scale=0.4),
        "conv.weight": normal(32, 16, 3, 3, scale=0.001),
    }


def trained(state: dict[str, torch.Tensor], share: float = 0.05, seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (tensor + share * tensor.float().std() * torch.randn(tensor.shape, generator=generator)).to(
            tensor.dtype
        )
        for name, tensor in state.items()
    }


@pytest.fixture
def chain() -> list[dict[str, torch.Tensor]]:
    """Six states of one run."""
    torch.manual_seed(0)
    states = [layers()]
    for step in range(5):
        states.append(trained(states[-1], seed=step))
    return states
