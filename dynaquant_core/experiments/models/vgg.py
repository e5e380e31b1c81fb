"""CIFAR-style VGG (Simonyan and Zisserman 2015) of free depth and width, with batch norm.

Plain 3x3 convolutions without shortcuts, a pooling layer after each stage, one hidden layer before the
labels: as there, a good part of the weights sits in that layer, which is unlike a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

__all__ = ["VGG"]


class VGG(nn.Module):
    """Image classifier.

    Args:
        classes: number of labels.
        widths: channels of each stage; every stage ends by halving the resolution, so five at most.
        depths: convolutions of each stage.
        hidden: width of the hidden layer.
        side: of the images, in pixels.

    ``forward(images)`` maps float32[batch, 3, side, side] to logits float32[batch, classes].

    Example:
        >>> import torch
        >>> model = VGG(classes=10, widths=(8, 16), depths=(1, 2), hidden=32)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        widths: Sequence[int] = (16, 32, 64, 128),
        depths: Sequence[int] = (1, 1, 2, 2),
        hidden: int = 256,
        side: int = 32,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width, count in zip(widths, depths, strict=True):
            for _ in range(count):
                layers += [
                    nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                ]  # fmt: skip
                inputs = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        left = side >> len(widths)
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(inputs * left * left, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the labels."""
        logits: Tensor = self.head(self.hidden(self.features(images)))
        return logits
