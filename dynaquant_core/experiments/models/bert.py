"""A small BERT (Devlin et al. 2019): a transformer that reads in both directions and fills in hidden words.

Pre-norm blocks, learned positions, and the authors' transform before a tied head with a bias of its own.
There are no segments and no token in front of a sequence: nothing is classified while it is pre-trained.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dynaquant_core.experiments.models.transformer import Block, initialise

__all__ = ["Bert"]


class Bert(nn.Module):
    """Masked language model.

    Args:
        vocabulary: number of different symbols, those of unknown and hidden words included.
        layers, width, heads: shape of the encoder (4 x 128 over 2048 words is 1.1M parameters).
        context: longest sequence, in words.
        dropout: probability, in attention and after each MLP.

    ``forward(tokens)`` maps int64[batch, time] to logits float[batch, time, vocabulary].

    Example:
        >>> model = Bert(vocabulary=100, layers=1, width=32, heads=2, context=8)
        >>> model(torch.zeros(2, 8, dtype=torch.int64)).shape
        torch.Size([2, 8, 100])
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int = 4,
        width: int = 128,
        heads: int = 4,
        context: int = 64,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        blocks = [Block(width, heads, dropout, causal=False) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.transform = nn.Linear(width, width)
        self.norm_head = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        initialise(self, blocks)
        for (
            block
        ) in blocks:  # 0.02 is for widths near a thousand: narrow attention would begin blind to places
            nn.init.normal_(block.attn.qkv.weight, std=width**-0.5)
        nn.init.zeros_(self.transform.bias)
        nn.init.zeros_(self.head.bias)
        self.head.weight = self.wte.weight  # tied, as in BERT

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the word at every position."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        for block in self.blocks:
            x = block(x)
        x = self.norm_head(functional.gelu(self.transform(self.norm(x))))
        logits: Tensor = self.head(x)
        return logits
