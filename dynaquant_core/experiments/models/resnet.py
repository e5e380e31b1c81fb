"""CIFAR-style residual network of free depth and width.

Basic blocks as in He et al. (2016), section 4.2, but in any number of stages of free width, so that most
parameters can sit in the late, low-resolution stages, where a training step is cheap.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

__all__ = ["ResNet", "shortcut"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut (1x1 where the shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps float32[batch, inputs, h, w] to float32[batch, outputs, h / stride, w / stride]."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        joined: Tensor = functional.relu(out + self.shortcut(x))
        return joined


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The way around a block: nothing, or a projection where the shape changes (He et al. 2016, option B)."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Image classifier.

    Args:
        classes: number of labels.
        widths: channels of each stage; every stage after the first halves the resolution.
        depths: basic blocks of each stage (one number serves all stages).

    ``forward(images)`` maps float32[batch, 3, height, width] to logits float32[batch, classes].

    Example:
        >>> import torch
        >>> model = ResNet(classes=10, widths=(8, 16, 32), depths=1)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        widths: Sequence[int] = (16, 32, 64, 128, 256),
        depths: int | Sequence[int] = 1,
    ) -> None:
        super().__init__()
        counts = [depths] * len(widths) if isinstance(depths, int) else list(depths)
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(widths[0])
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, (outputs, count) in enumerate(zip(widths, counts, strict=True)):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(BasicBlock(inputs, outputs, stride))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the labels."""
        x = functional.relu(self.bn(self.stem(images)))
        x = self.blocks(x)
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits
