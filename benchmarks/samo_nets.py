"""What `samo.py` times: a GPT on text and three nets on images, their data, loss and optimizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dynaquant_core.experiments.data.cifar import read as read_images
from dynaquant_core.experiments.data.corpus import read as read_text
from dynaquant_core.experiments.data.dataset import Batch
from dynaquant_core.experiments.data.images import normalise
from dynaquant_core.experiments.data.text import encode
from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.experiments.models.resnet import ResNet

#: Items of a batch, by the name of the net.
BATCH = {"gpt": 16, "vgg": 32, "wide": 32, "mlp": 4}
CONTEXT = 64


def vgg() -> nn.Module:
    """VGG-11's plan at half its width, with batch norms, for 32x32 images."""
    layers: list[nn.Module] = []
    inputs = 3
    for width in (32, 0, 64, 0, 128, 128, 0, 256, 256, 0, 256, 256, 0):
        if width == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            inputs = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


def mlp() -> nn.Module:
    """29.4M parameters, each used once an image: with few images a step is its gradients' way to others."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
    )


def build(name: str, seed: int = 0) -> nn.Module:
    """A fresh model."""
    torch.manual_seed(seed)
    if name == "gpt":
        return CharGPT(65, layers=4, width=256, heads=4, context=CONTEXT)
    if name == "mlp":
        return mlp()
    return vgg() if name == "vgg" else ResNet(10, widths=(64, 128, 256), depths=1)


class Data:
    """Batches by number."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name == "gpt":
            self.train, _ = encode(read_text("text/tinyshakespeare.txt", 1 << 24))
        else:
            pixels = read_images("cifar10/cifar10_lossless_subset.npz")
            self.images, self.labels = normalise(pixels.train), torch.from_numpy(pixels.train_labels)

    def batch(self, step: int) -> Batch:
        """The same at every call with the same number."""
        random = np.random.default_rng([7, step])
        if self.name == "gpt":
            return _rows(self.train, random.integers(0, len(self.train) - CONTEXT - 1, BATCH["gpt"]))
        chosen = torch.from_numpy(random.integers(0, len(self.images), BATCH[self.name]))
        return self.images[chosen], self.labels[chosen]


def _rows(codes: Any, starts: Any) -> Batch:
    rows = torch.from_numpy(codes[starts[:, None] + np.arange(CONTEXT + 1)])
    return rows[:, :-1], rows[:, 1:]


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy in nats."""
    return cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all measurements."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
