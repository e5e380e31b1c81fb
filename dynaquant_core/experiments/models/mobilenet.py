"""A small network of depthwise convolutions, after MobileNetV3 (Howard et al. 2019), for 32x32 images.

Inverted residuals: a 1x1 convolution widens, a depthwise 3x3 mixes places, squeeze-and-excitation weighs
channels, a 1x1 convolution narrows again, without an activation.  Depthwise weights are few and every one of
them matters, which is why such networks are hard to quantise.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

__all__ = ["InvertedResidual", "MobileNet"]

#: Share of the channels that squeeze-and-excitation narrows to.
SQUEEZE = 4


class Excitation(nn.Module):
    """Squeeze-and-excitation: each channel times a number in [0, 1] that depends on the means of all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = max(1, width // SQUEEZE)
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, inner, 1),
            nn.ReLU(),
            nn.Conv2d(inner, width, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps float32[batch, width, h, w] to the same shape."""
        weighed: Tensor = x * self.weigh(x)
        return weighed


class InvertedResidual(nn.Module):
    """One block, with a shortcut where its shape allows.

    Args:
        inputs, outputs: channels.
        expand: times as many channels in between.
        stride: of the depthwise convolution.
    """

    def __init__(self, inputs: int, outputs: int, expand: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expand
        self.widen = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.Hardswish()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.Hardswish(),
        )
        self.excite = Excitation(inner)
        self.narrow = nn.Sequential(nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.joins = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Maps float32[batch, inputs, h, w] to float32[batch, outputs, h / stride, w / stride]."""
        out: Tensor = self.narrow(self.excite(self.depthwise(self.widen(x))))
        return x + out if self.joins else out


class MobileNet(nn.Module):
    """Image classifier.

    Args:
        classes: number of labels.
        widths: channels of each stage; every stage after the first halves the resolution.
        depths: blocks of each stage.
        expand: of each block.

    ``forward(images)`` maps float32[batch, 3, height, width] to logits float32[batch, classes].

    Example:
        >>> import torch
        >>> model = MobileNet(classes=10, widths=(8, 16), depths=(1, 2), expand=2)
        >>> model(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        widths: Sequence[int] = (12, 24, 48, 96),
        depths: Sequence[int] = (1, 2, 2, 2),
        expand: int = 4,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.Hardswish(),
        )
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, (width, count) in enumerate(zip(widths, depths, strict=True)):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(InvertedResidual(inputs, width, expand, stride))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(
            nn.Conv2d(inputs, inputs * expand, 1, bias=False), nn.BatchNorm2d(inputs * expand), nn.Hardswish()
        )
        self.head = nn.Linear(inputs * expand, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the labels."""
        x = self.last(self.blocks(self.stem(images)))
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits
