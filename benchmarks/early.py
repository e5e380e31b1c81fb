"""What restores cost a network that has learnt next to nothing yet: the README's loop, run on and restored.

A network of two layers learns drawn points labelled by a linear map, every step on new ones, and is restored
from its own checkpoint right after some saves, as if it had died there.  The final loss on points that nobody
sees is compared with that of the same run without restores; exact checkpoints must cost nothing.

    python benchmarks/early.py
    python benchmarks/early.py --restores 1 --seeds 0 1 2 3
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import dynaquant_core as dq

#: What is compared: title -> method.
METHODS: Mapping[str, Any] = {
    "lattice (the default)": "lattice",
    "lattice, max_noise 100": {"name": "lattice", "max_noise": 100},
    "lattice, max_step_of all, max_step 1": {"name": "lattice", "max_step_of": "all", "max_step": 1},
    "lattice, max_step_of all, max_step 0.5": {"name": "lattice", "max_step_of": "all", "max_step": 0.5},
    "lattice, max_noise 3": {"name": "lattice", "max_noise": 3},
    "dynaquant": "dynaquant",
    "none": "none",
}


class Run:
    """The network, its optimizer and its points.

    Args:
        seed: of the weights and of the batches; the map and the held-out points are the same for all.
    """

    def __init__(self, seed: int) -> None:
        drawn = torch.Generator().manual_seed(7)
        self.truth = torch.randn(64, 10, generator=drawn)
        self.measured, self.unseen = (torch.randn(count, 64, generator=drawn) for count in (512, 2048))
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._seed = seed

    def loss(self, points: Tensor) -> Tensor:
        """Cross-entropy on points."""
        return nn.functional.cross_entropy(self.model(points), (points @ self.truth).argmax(1))

    def step(self, number: int) -> None:
        """One step on 32 new points."""
        batch = torch.Generator().manual_seed(number + 1_000_000 * self._seed)
        self.optimizer.zero_grad()
        self.loss(torch.randn(32, 64, generator=batch)).backward()
        self.optimizer.step()

    @torch.no_grad()
    def measure(self) -> float:
        """Loss on the points that the search measures."""
        return self.loss(self.measured).item()

    @torch.no_grad()
    def final(self) -> float:
        """Loss on the points that neither training nor search sees."""
        return self.loss(self.unseen).item()


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended: its final loss, and raw over stored bytes of the weights of all its checkpoints."""

    loss: float
    ratio: float


def trained(
    make: Callable[[int], Any],
    seed: int,
    steps: int,
    every: int,
    restores: int,
    method: Any,
    threshold: float,
    exact: Sequence[str] = (),
) -> Result:
    """A run that is restored after its first saves; without a method one that is not saved at all."""
    run = make(seed)
    if method is None:
        for step in range(steps):
            run.step(step)
        return Result(run.final(), 0.0)
    with tempfile.TemporaryDirectory() as folder:
        for life in range(restores + 1):
            run = make(seed)
            with dq.Checkpointer(
                folder,
                run.model,
                run.optimizer,
                every=every,
                evaluate=run.measure,
                threshold=threshold,
                method=method,
                moments="exact",
                exact=exact,
            ) as checkpoints:
                until = (life + 1) * every if life < restores else steps
                for step in range(checkpoints.restore(), until):
                    run.step(step)
                    checkpoints.step()
        store = dq.CheckpointStore(folder)
        parts = [store.info(step).parts["weight"] for step in store.steps()]
        stored = sum(part["stored_bytes"] for part in parts)
        return Result(run.final(), sum(part["raw_bytes"] for part in parts) / stored)


def main() -> None:
    """Trains every method and seed, and prints a row a method."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=40, help="steps between saves")
    parser.add_argument("--restores", type=int, nargs="+", default=[1, 9])
    parser.add_argument("--threshold", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    rest = {"steps": options.steps, "every": options.every, "threshold": options.threshold}
    undisturbed = {seed: trained(Run, seed, restores=0, method=None, **rest).loss for seed in options.seeds}
    table = Table(title=f"{options.steps} steps, a save every {options.every}, {options.threshold:.0%}")
    for column in ("restores", "method", "final cost by seed", "weights ratio"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for restores in options.restores:
        for title, method in METHODS.items():
            found = {
                seed: trained(Run, seed, restores=restores, method=method, **rest) for seed in options.seeds
            }
            costs = [f"{one.loss / undisturbed[seed] - 1:+.1%}" for seed, one in found.items()]
            ratios = ", ".join(f"{one.ratio:.1f}" for one in found.values())
            table.add_row(str(restores), title, ", ".join(costs), ratios)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
