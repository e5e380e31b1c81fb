"""A small network of Inception blocks (Szegedy et al. 2015), with batch norms."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Inception"]


def _convolution(inputs: int, outputs: int, size: int) -> nn.Sequential:
    """Convolution, batch norm, rectifier."""
    layer = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())


class Block(nn.Module):
    """Four branches side by side: 1x1, 3x3, twice 3x3, and pooling, ``width`` channels each."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        three = nn.Sequential(_convolution(inputs, width, 1), _convolution(width, width, 3))
        five = nn.Sequential(
            _convolution(inputs, width, 1), _convolution(width, width, 3), _convolution(width, width, 3)
        )
        pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _convolution(inputs, width, 1))
        self.branches = nn.ModuleList([_convolution(inputs, width, 1), three, five, pool])

    def forward(self, images: Tensor) -> Tensor:
        """Maps float32[batch, inputs, h, w] to float32[batch, 4 width, h, w]."""
        return torch.cat([branch(images) for branch in self.branches], dim=1)


class Inception(nn.Module):
    """Image classifier of three blocks with pooling between them.

    Args:
        classes: number of labels.
        width: channels of the first convolution, even; the last block has four times as many.

    ``forward(images)`` maps float32[batch, 3, height, width] to logits float32[batch, classes].

    Example:
        >>> Inception(classes=10, width=4)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, *, width: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _convolution(3, width, 3), Block(width, width // 2), nn.MaxPool2d(2),
            Block(2 * width, width), nn.MaxPool2d(2),
            Block(4 * width, width), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the labels."""
        logits: Tensor = self.head(self.features(images))
        return logits
