"""A small vision transformer (Dosovitskiy et al. 2021, "ViT"), sized to train from scratch on 32x32 images.

Square patches, learned positions, pre-norm blocks; the mean over patches is classified, as in the authors'
later simple baseline, so that there is no class token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dynaquant_core.experiments.models.transformer import Block, initialise

__all__ = ["ViT"]


class ViT(nn.Module):
    """Image classifier.

    Args:
        classes: number of labels.
        layers, width, heads: shape of the encoder (5 x 128 with 4 heads is 1.0M parameters).
        patch: side of a patch, in pixels; divides ``side``.
        side: of the images, in pixels.
        dropout: probability, in attention and after each MLP.

    ``forward(images)`` maps float32[batch, 3, side, side] to logits float32[batch, classes].

    Example:
        >>> model = ViT(classes=10, layers=1, width=32, heads=2, patch=8)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        layers: int = 5,
        width: int = 128,
        heads: int = 4,
        patch: int = 4,
        side: int = 32,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.wpe = nn.Embedding((side // patch) ** 2, width)
        blocks = [Block(width, heads, dropout, causal=False) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        initialise(self, blocks)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the labels."""
        x = self.patches(images).flatten(2).transpose(1, 2)  # (batch, patches, width)
        x = x + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(dim=1))
        return logits
