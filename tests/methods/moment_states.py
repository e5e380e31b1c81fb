"""Optimizer states that training made, a few steps each, named as in a whole state; and how one is saved."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynaquant_core.methods.base import Hints, Method, Reference
from dynaquant_core.methods.fixed import NoConfig
from dynaquant_core.state import assign_roles, flatten
from tests.methods.memory import Memory

State = dict[str, Tensor]

#: Those that keep less than 8 bits.
POLICIES = ("compact", "minimal", "sparse", "second", "none")


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Matrices above and below what is pooled, a convolution, biases and norms."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(4, 32, 3, padding=1),
        nn.Flatten(),
        nn.LayerNorm(256),
        nn.Linear(256, 300),
        nn.ReLU(),
        nn.Linear(300, 32),
    ).to(dtype)


def adamw(network: nn.Module) -> Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=1e-3)


def train(network: nn.Module, optimizer: Optimizer, steps: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype = next(network.parameters()).dtype
    for _ in range(steps):
        inputs = torch.randn(16, 4, 8, generator=generator).to(dtype)
        loss = (network(inputs) - inputs.flatten(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def moments(optimizer: Optimizer) -> State:
    """Copies of the tensors whose role is "moment"."""
    tree = flatten({"optimizer": optimizer.state_dict()})
    roles = assign_roles(tree.leaves)
    return {leaf.name: leaf.tensor.clone() for leaf in tree.leaves if roles[leaf.name] == "moment"}


def chain(
    make: Callable[[nn.Module], Optimizer] = adamw, dtype: torch.dtype = torch.float32, length: int = 6
) -> list[State]:
    """The moments at some checkpoints of one run."""
    network = model(dtype)
    optimizer = make(network)
    states = []
    for seed in range(length):
        train(network, optimizer, 5, seed)
        states.append(copy.deepcopy(moments(optimizer)))
    return states


def write(policy: Method, state: State, ref: Reference | None = None) -> tuple[Memory, Reference]:
    """(what a reader is given, what the writer holds) after one save."""
    draft = policy.draft(state, ref, NoConfig(), Hints())
    draft.detach()
    streams, writer = draft.encode()
    return Memory(state, streams), writer
