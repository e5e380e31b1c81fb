"""What `two_bit.py` trains: an MLP on MNIST and an LSTM on characters, over two ranks or as two replicas."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.comm import two_bit
from dynaquant_core.experiments.data.dataset import locate
from dynaquant_core.experiments.data.text import encode


class Mlp(nn.Sequential):
    """784 - 512 - 256 - 10."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


class CharLstm(nn.Module):
    """Characters in, the next ones out."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, 64)
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [batch * time, classes] of characters [batch, time]."""
        hidden, _ = self.lstm(self.embed(inputs))
        logits: Tensor = self.head(hidden)
        return logits.flatten(0, 1)


class Task:
    """A net, batches of this rank, and a held-out loss."""

    def __init__(self, net: str, seed: int) -> None:
        torch.manual_seed(seed)
        if net == "mlp":
            with np.load(locate("mnist/mnist.npz")) as data:
                sets = [(data[f"x_{part}"], data[f"y_{part}"]) for part in ("train", "test")]
            self.sets = [
                (torch.from_numpy(x).float().flatten(1).sub_(33.3).div_(78.6), torch.from_numpy(y).long())
                for x, y in sets
            ]
            self.model: nn.Module = Mlp()
            self.rate = 0.1
        else:
            codes, classes = encode(locate("text/tinyshakespeare.txt").read_text(encoding="utf-8"))
            rows = torch.from_numpy(codes[: len(codes) // 33 * 33]).view(-1, 33)
            rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
            self.sets = [(part[:, :-1], part[:, 1:]) for part in (rows[512:], rows[:512])]
            self.model, self.rate = CharLstm(classes), 1.0

    def loss(self, model: nn.Module, draw: torch.Generator) -> Tensor:
        """On one batch."""
        inputs, targets = self.sets[0]
        rows = torch.randint(len(inputs), (16,), generator=draw)
        return cross_entropy(model(inputs[rows]), targets[rows].flatten())

    @torch.no_grad()
    def held_out(self, model: nn.Module) -> float:
        """Mean loss on the held-out set."""
        inputs, targets = self.sets[1]
        losses = [
            cross_entropy(model(x), y.flatten())
            for x, y in zip(inputs.split(256), targets.split(256), strict=True)
        ]
        return float(torch.stack(losses).mean())


def train_rank(net: str, steps: int, threshold: float | None, warmup: int, seed: int) -> dict[str, Any]:
    """Under DDP, on one of two ranks."""
    task = Task(net, seed)
    model = DistributedDataParallel(task.model)
    if threshold is not None:
        two_bit.register(model, threshold=threshold, warmup=warmup)
    draws = [torch.Generator().manual_seed(1000 * seed + distributed.get_rank())]
    return _loop(task, [model], draws, steps, lambda: None)


def train_replicas(net: str, steps: int, threshold: float | None, warmup: int, seed: int) -> dict[str, Any]:
    """The same in one process: the reductions equal the hook's bit for bit (tests/comm)."""
    torch.set_num_threads(1)
    task = Task(net, seed)
    replicas = [task.model, deepcopy(task.model)]
    dense = threshold is None
    reducer = two_bit.LocalReducer(replicas, threshold or 1.0, warmup=steps if dense else warmup)
    draws = [torch.Generator().manual_seed(1000 * seed + rank) for rank in range(2)]
    return _loop(task, replicas, draws, steps, reducer.reduce)


def _loop(
    task: Task,
    models: list[nn.Module],
    draws: list[torch.Generator],
    steps: int,
    reduce: Callable[[], None],
) -> dict[str, Any]:
    optimizers = [torch.optim.SGD(model.parameters(), lr=task.rate) for model in models]
    falling = [torch.optim.lr_scheduler.LinearLR(each, 1.0, 0.05, total_iters=steps) for each in optimizers]
    sizes = []
    for _ in range(steps):
        for model, draw in zip(models, draws, strict=True):
            model.zero_grad()
            task.loss(model, draw).backward()
        reduce()
        gradients = [p.grad for p in models[0].parameters() if p.grad is not None]
        sizes.append(statistics.fmean(float(gradient.abs().mean()) for gradient in gradients))
        for model, each, schedule in zip(models, optimizers, falling, strict=True):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            each.step()
            schedule.step()
    return {"loss": task.held_out(task.model), "mean_gradient": statistics.fmean(sizes)}
