"""One training of a character GPT on tiny Shakespeare, the same in every framework but for its own parts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dynaquant_core.experiments.config.parts import TextData
from dynaquant_core.experiments.data.dataset import Batch
from dynaquant_core.experiments.data.registry import open_data
from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.plugins import describe, find_checkpoints

P = ParamSpec("P")
T = TypeVar("T")

#: Name -> layers, width, heads.
SIZES = {"0.8M": (4, 128, 4), "1M": (5, 128, 4), "10M": (6, 384, 6), "30M": (10, 512, 8)}

CONTEXT = 64
RATE = 2e-3

#: Norm at which gradients are clipped, the HF Trainer's default.
CLIP = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """What one process is to train.

    Args:
        folder: of the checkpoints.
        ours: whether DynaQuant is in it.
        seed: of weights and batches.
        size: a key of `SIZES`.
        steps, every, keep: optimizer steps, those between two saves, and checkpoints to keep (0: all).
        batch: sequences a step.
        resume: go on from what is in the folder, by the framework's own argument.
        kill_at: the step after which the process kills itself; 0: never.
        search: whether DynaQuant may measure candidates; else it uses its fixed configuration.
        search_tokens: what it measures them on.
        max_chain, method: DynaQuant's options; None: their defaults.
        threads: of torch.
    """

    folder: str
    ours: bool
    seed: int = 0
    size: str = "0.8M"
    steps: int = 240
    every: int = 40
    keep: int = 3
    batch: int = 8
    resume: bool = False
    kill_at: int = 0
    search: bool = True
    search_tokens: int = 4096
    max_chain: int | None = None
    method: str | None = None
    threads: int = 1

    def options(self) -> dict[str, Any]:
        """DynaQuant's options that are the same in each framework."""
        chain = {} if self.max_chain is None else {"max_chain": self.max_chain}
        return {"threshold": 0.01, "method": self.method} | chain

    def may_die(self, step: int) -> None:
        """Kills the process if it is to die after this step."""
        if step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class Material:
    """Batches and model of a job.

    Args:
        job: which one.

    Attributes:
        inputs, targets: int64[steps * batch, context] in the order of training.
        search, heldout: batches for DynaQuant, and those that only `result` looks at.
    """

    def __init__(self, job: Job) -> None:
        section = TextData(
            name="text",
            source="text/tinyshakespeare.txt",
            batch=job.batch,
            context=CONTEXT,
            search_tokens=job.search_tokens,
            heldout_tokens=16_384,
        )
        data = open_data(section, evaluation_batch=32)
        drawn = [data.batch(job.seed, step) for step in range(job.steps)]
        self.inputs, self.targets = (torch.cat(part) for part in zip(*drawn, strict=True))
        self.search, self.heldout, self.classes = data.search, data.heldout, data.classes
        self.shape = SIZES[job.size]

    def model(self) -> CharGPT:
        """Freshly initialised from torch's generator."""
        layers, width, heads = self.shape
        return CharGPT(self.classes, layers=layers, width=width, heads=heads, context=CONTEXT)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all positions."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def losses(forward: Callable[[Tensor], Tensor], batches: Sequence[Batch]) -> list[float]:
    """One loss a batch."""
    return [float(loss_of(forward(inputs), targets)) for inputs, targets in batches]


def timed(function: Callable[P, T], seconds: list[float]) -> Callable[P, T]:
    """``function``, whose calls add their time to a list."""

    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - started)

    return wrapper


def result(
    job: Job, started_at: int, model: nn.Module, forward: Callable[[Tensor], Tensor], held: list[float]
) -> dict[str, Any]:
    """What a life that reached its end tells: held-out loss, times of its saves, checkpoints on the disk."""
    model.eval()
    found = losses(forward, Material(job).heldout)
    infos = sorted(map(describe, find_checkpoints(job.folder)), key=lambda info: info.step)
    return {
        "from": started_at,
        "loss": sum(found) / len(found),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "held": held,
        "checkpoints": [
            {
                "step": info.step,
                "kind": info.kind,
                "met": info.met,
                "evaluations": info.evaluations,
                "seconds": {**info.seconds, **info.report.get("seconds", {})},
            }
            for info in infos
        ],
    }


def on_disk(folder: Path) -> int:
    """Bytes of all files, those with several names once."""
    sizes = {}
    for place, _, names in os.walk(folder):  # passes over folders that are removed meanwhile
        for name in names:
            try:
                status = (Path(place) / name).lstat()
            except OSError:
                continue
            sizes[status.st_ino] = status.st_size
    return sum(sizes.values())
