"""Nets, batches and the dense masked loop that SAMO is held against."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dynaquant_core.experiments.models.char_gpt import CharGPT

VOCABULARY = 31

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=3e-3, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-3, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=3e-3, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "foreach adamw": lambda p: torch.optim.AdamW(p, lr=3e-3, foreach=True),
}


class ConvNet(nn.Module):
    """Convolutions, batch norms and a linear head; vectors and four-dimensional weights."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 16, 3, stride=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def gpt(seed=0):
    torch.manual_seed(seed)
    return CharGPT(VOCABULARY, layers=2, width=32, heads=2, context=16)


def conv(seed=0):
    torch.manual_seed(seed)
    return ConvNet()


def loss_of(model, seed, rows=8):
    """A fresh batch a seed, of real structure, so that there is something to learn."""
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    if isinstance(model, CharGPT) or hasattr(model, "wte"):
        start = torch.randint(0, VOCABULARY, (rows, 1), generator=generator)
        tokens = ((start + 3 * torch.arange(17)) % VOCABULARY).to(device)
        return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    x = torch.randn(rows, 3, 10, 10, generator=generator).to(device)
    return cross_entropy(model(x), (x.mean((1, 2, 3)) * 20).long().clamp(-2, 2) + 2)


class DenseMasked:
    """The plain loop: everything dense, gradients and weights multiplied by the mask at every step."""

    def __init__(self, model, make, masks):
        self.model = model
        self.optimizer = make(model.parameters())
        self.masks = masks
        self.by_name = dict(model.named_parameters())
        self._mask("data")

    def step(self):
        self._mask("grad")
        self.optimizer.step()
        self._mask("data")

    def _mask(self, what):
        with torch.no_grad():
            for name, mask in self.masks.items():
                getattr(self.by_name[name], what).masked_fill_(~mask, 0)


def twin(model):
    return copy.deepcopy(model)


def equal(one, other):
    """Whether two modules' states are the same bits (a zero's sign apart)."""
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
