"""Real models and loops that the tests of this folder train."""

# ruff: noqa: NPY002 - the legacy stream is one of those that a checkpoint restores

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.state.rebuild import unflatten
from dynaquant_core.state.tree import flatten

VOCABULARY = 31


class Net(nn.Module):
    """An MLP whose forward pass draws random numbers (dropout) and changes buffers (batch norm)."""

    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, width)
        )
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 4)
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return self.head(self.norm(self.body(x)))


def seed_everything(seed=0):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def small_gpt(dropout=0.1):
    return CharGPT(VOCABULARY, layers=2, width=32, heads=2, context=16, dropout=dropout)


def net_loss(model):
    """Loss on a batch drawn from all three random streams, as augmentation would."""
    x = torch.randn(8, 16) + float(np.random.rand()) + random.random()
    return functional.cross_entropy(model(x), torch.randint(0, 4, (8,)))


def gpt_loss(model):
    """Next-character loss on repeating text, so that there is something to learn."""
    start = torch.randint(0, VOCABULARY, (8, 1))
    tokens = (start + 3 * torch.arange(17)) % VOCABULARY
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def evaluate_net(model):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(64, 16, generator=generator)
    y = torch.randint(0, 4, (64,), generator=generator)
    return [float(functional.cross_entropy(model(a), b)) for a, b in zip(x.chunk(4), y.chunk(4), strict=True)]


def evaluate_gpt(model):
    tokens = (torch.arange(16)[:, None] * 2 + 3 * torch.arange(17)) % VOCABULARY
    logits = model(tokens[:, :-1])
    loss = functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    return loss.mean(1)


def one_step(model, optimizer, loss_of, scheduler=None):
    optimizer.zero_grad()
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
    return float(loss.detach())


#: Nothing is rounded: a resumed run is the uninterrupted one.
EXACT = {"exact": ("*",), "moments": "exact"}


def build(width=32):
    model = Net(width)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, optimizer, checkpoints, steps, loss_of=net_loss):
    for _ in range(steps):
        one_step(model, optimizer, loss_of)
        checkpoints.step()


def stored(tree):
    """The tree as a lossless checkpoint would give it back: through the skeleton, in memory of its own."""
    flat = flatten(tree)
    leaves = {leaf.name: leaf.tensor.clone() for leaf in flat.leaves}
    return unflatten(flat.skeleton, leaves.__getitem__)


def bits(tree):
    """Every tensor, array and number of a tree as comparable bytes, by path."""
    if isinstance(tree, torch.Tensor):
        return (
            str(tree.dtype),
            tuple(tree.shape),
            tree.detach().cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(tree, np.ndarray):
        return (str(tree.dtype), tree.shape, tree.tobytes())
    if isinstance(tree, dict):
        return {key: bits(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [bits(value) for value in tree]
    return repr(tree)


class Interruptible(torch.optim.SGD):
    """Goes through its parameters in Python, as many do; armed, something comes between two of them.

    Args:
        comes: called there once.
    """

    armed = False

    def __init__(self, parameters, lr, comes):
        super().__init__(parameters, lr=lr)
        self.comes = comes

    @torch.no_grad()
    def step(self, closure=None):
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            if self.armed and number == 1:
                self.armed = False
                self.comes()
            parameter.sub_(parameter.grad, alpha=0.1)
