"""A small GPT over characters: the decoder of nanoGPT's size class, in plain PyTorch.

Pre-norm blocks, learned positions, a tied head.  Dropout is off by default; it is a knob because
a test of transparency wants a model whose forward pass draws random numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["CharGPT"]


class CausalSelfAttention(nn.Module):
    """Multi-head attention in which a position sees itself and what came before."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
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
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        projected: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, time, width))
        return projected


class Block(nn.Module):
    """One pre-norm transformer block: attention, then a four times wider MLP."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attn = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, dropout)
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


class CharGPT(nn.Module):
    """Next-character model.

    Args:
        vocabulary: number of different characters.
        layers, width, heads: shape of the decoder (4 x 256 with 4 heads is 3.2M parameters).
        context: longest sequence, in characters.
        dropout: probability, in attention and after each MLP.

    ``forward(tokens)`` maps int64[batch, time] to logits float[batch, time, vocabulary].

    Example:
        >>> model = CharGPT(vocabulary=65, layers=1, width=32, heads=2, context=8)
        >>> model(torch.zeros(2, 8, dtype=torch.int64)).shape
        torch.Size([2, 8, 65])
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int = 4,
        width: int = 256,
        heads: int = 4,
        context: int = 64,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.context = context
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        blocks = [Block(width, heads, dropout) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._initialise)
        self.head.weight = self.wte.weight  # tied, as in GPT-2
        for block in blocks:  # GPT-2: residual branches start smaller with depth
            for weight in (block.attn.proj.weight, block.contract.weight):
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers))

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next character at every position."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
