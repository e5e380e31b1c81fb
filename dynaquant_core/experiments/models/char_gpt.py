"""A small GPT over characters: the decoder of nanoGPT's size class, in plain PyTorch.

Pre-norm blocks, learned positions, a tied head.  Dropout is off by default; it is a knob because
a test of transparency wants a model whose forward pass draws random numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dynaquant_core.experiments.models.transformer import Block, initialise

__all__ = ["CharGPT"]


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
        blocks = [Block(width, heads, dropout, causal=True) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        initialise(self, blocks)
        self.head.weight = self.wte.weight  # tied, as in GPT-2

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next character at every position."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
