"""The block that the GPT and the ViT are stacked from: pre-norm attention, then a four times wider MLP."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Block", "SelfAttention", "initialise"]


class SelfAttention(nn.Module):
    """Multi-head attention over a sequence.

    Args:
        width: of the embeddings; a multiple of ``heads``.
        heads: of attention.
        dropout: probability, on attention weights, in training.
        causal: whether a position sees itself and what came before only.
    """

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes float[batch, time, width] over time."""
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, -1).transpose(1, 2)  # (batch, heads, time, width/heads)
            for part in self.qkv(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, dropout_p=dropout)
        projected: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, time, width))
        return projected


class Block(nn.Module):
    """One pre-norm block; arguments as `SelfAttention`."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.norm_attn = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads, dropout, causal=causal)
        self.norm_mlp = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.contract = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps float[batch, time, width] to the same shape."""
        x = x + self.attn(self.norm_attn(x))
        hidden = functional.gelu(self.expand(self.norm_mlp(x)))
        out: Tensor = x + self.dropout(self.contract(hidden))
        return out


def initialise(model: nn.Module, blocks: Sequence[Block]) -> None:
    """Weights as in GPT-2: normal of 0.02, and residual branches that start smaller with depth."""
    model.apply(_initialise)
    for block in blocks:
        for weight in (block.attn.proj.weight, block.contract.weight):
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * len(blocks)))


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
