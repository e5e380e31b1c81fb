"""Deep residual network with bottlenecks (He et al. 2016, table 1): ResNet-50, -101 and -152.

The stride is on the 3x3 convolution, as in every widely used implementation since.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from dynaquant_core.experiments.models.resnet import shortcut

__all__ = ["BottleneckNet"]

#: Outputs of a block, as a multiple of its width.
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with batch norm, and a shortcut (1x1 where the shape changes)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Maps float32[batch, inputs, h, w] to float32[batch, 4 width, h / stride, w / stride]."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = functional.relu(self.bn2(self.conv2(out)))
        joined: Tensor = functional.relu(self.bn3(self.conv3(out)) + self.shortcut(x))
        return joined


class BottleneckNet(nn.Module):
    """Image classifier.

    Args:
        classes: number of labels.
        widths: of each stage; every stage after the first halves the resolution.
        depths: blocks of each stage.

    ``forward(images)`` maps float32[batch, 3, height, width] to logits float32[batch, classes].

    Example:
        >>> import torch
        >>> model = BottleneckNet(classes=10, widths=(4, 8), depths=(1, 2))
        >>> model(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 1000,
        *,
        widths: Sequence[int] = (64, 128, 256, 512),
        depths: Sequence[int] = (3, 8, 36, 3),
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 7, stride=2, padding=3, bias=False)
        self.bn = nn.BatchNorm2d(widths[0])
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, (width, count) in enumerate(zip(widths, depths, strict=True)):
            for index in range(count):
                blocks.append(Bottleneck(inputs, width, 2 if stage > 0 and index == 0 else 1))
                inputs = EXPANSION * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the labels."""
        x = functional.relu(self.bn(self.stem(images)))
        x = self.blocks(functional.max_pool2d(x, 3, stride=2, padding=1))
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits
