"""Classifiers of grey 28x28 images, the models of arXiv 2009.13003; a perceptron, also of other points."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["AlexNet", "LeNet5", "Mlp", "Mlr"]

#: Pixels on a side.
SIDE = 28


class Mlr(nn.Module):
    """Multinomial logistic regression: one layer, which begins at zero, as its loss is convex.

    Args:
        classes: number of labels.

    ``forward(images)`` maps float32[batch, 1, 28, 28] to logits float32[batch, classes].

    Example:
        >>> import torch
        >>> Mlr(classes=10)(torch.ones(2, 1, 28, 28)).abs().sum().item()
        0.0
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.head = nn.Linear(SIDE * SIDE, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the labels."""
        logits: Tensor = self.head(images.flatten(1))
        return logits


class Mlp(nn.Module):
    """Three layers with rectifiers between them.

    Args:
        classes: number of labels.
        width: of the first hidden layer; the second has half of it.
        inputs: numbers an item.

    ``forward(items)`` maps float32[batch, ...], ``inputs`` numbers each, to logits float32[batch, classes].

    Example:
        >>> sum(parameter.numel() for parameter in Mlp(classes=10, width=512).parameters())
        535818
    """

    def __init__(self, classes: int = 10, *, width: int = 512, inputs: int = SIDE * SIDE) -> None:
        super().__init__()
        half = max(1, width // 2)
        self.hidden = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, half), nn.ReLU()
        )
        self.head = nn.Linear(half, classes)

    def forward(self, items: Tensor) -> Tensor:
        """Logits of the labels."""
        logits: Tensor = self.head(self.hidden(items))
        return logits


class LeNet5(nn.Module):
    """LeNet-5 (LeCun et al. 1998, sec. II): two convolutions of 5x5, three layers, tanh, 61,706 parameters.

    Every map of the second convolution sees all of the first, and a plain layer ends it, as usual today.

    Args:
        classes: number of labels.

    ``forward(images)`` maps float32[batch, 1, 28, 28] to logits float32[batch, classes].

    Example:
        >>> sum(parameter.numel() for parameter in LeNet5(classes=10).parameters())
        61706
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the labels."""
        logits: Tensor = self.head(self.features(images))
        return logits


class AlexNet(nn.Module):
    """AlexNet's five convolutions and three layers (Krizhevsky et al. 2012), for 28x28 images.

    Channels in torchvision's proportions, convolutions of 3x3, pooling by 2.  All channels go with ``width``;
    64 is the published network.  Weights begin as He et al. (2015) have them: plain SGD learns at once.

    Args:
        classes: number of labels.
        width: channels of the first convolution (8: 451,106 parameters with ten labels).
        dropout: probability, before the first two layers.

    ``forward(images)`` maps float32[batch, 1, 28, 28] to logits float32[batch, classes].

    Example:
        >>> import torch
        >>> AlexNet(classes=10, width=2)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int = 10, *, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 1
        for channels, pooled in ((1, True), (3, True), (6, False), (4, False), (4, True)):
            layers += [nn.Conv2d(inputs, channels * width, 3, padding=1), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if pooled else []
            inputs = channels * width
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(9 * inputs, 64 * width), nn.ReLU(),
            nn.Dropout(dropout), nn.Linear(64 * width, 64 * width), nn.ReLU(),
            nn.Linear(64 * width, classes),
        )  # fmt: skip
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                module.bias.data.zero_()  # type: ignore[union-attr]

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the labels."""
        logits: Tensor = self.head(self.features(images))
        return logits
