"""What restores cost a fine-tuning whose body is hardly trained beside its head.

A network of two layers learns points labelled by one map.  Then it gets a new head and learns another map,
of the same features, with a learning rate for the head three hundred times that of the body.  It is restored
from its own checkpoints, and the final loss on points that nobody sees is compared with that of the same run
without restores; exact checkpoints must cost nothing.

    python benchmarks/slow_body.py
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from early import trained
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

#: What is compared: title -> (method, what is kept exact).
METHODS: Mapping[str, tuple[Any, Sequence[str]]] = {
    "lattice (the default)": ("lattice", ()),
    "lattice, the body exact": ("lattice", ("model.0.*",)),
    "lattice, max_noise 3": ({"name": "lattice", "max_noise": 3}, ()),
    "dynaquant": ("dynaquant", ()),
    "none": ("none", ()),
}


def points(count: int, drawn: torch.Generator) -> Tensor:
    """Points with a few directions that matter, as features of data have."""
    return torch.randn(count, 64, generator=drawn) * torch.logspace(0, -1, 64)


@cache
def maps() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(first map, second map, measured points, unseen points)."""
    drawn = torch.Generator().manual_seed(7)
    first = torch.randn(64, 10, generator=drawn)
    return first, first @ torch.randn(10, 10, generator=drawn), points(512, drawn), points(2048, drawn)


def network() -> nn.Sequential:
    """Body and head."""
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))


@cache
def body(seed: int) -> dict[str, Tensor]:
    """A body that has learnt the first map."""
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(600):
        batch = points(64, torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), (batch @ maps()[0]).argmax(1)).backward()
        optimizer.step()
    return {name: tensor.clone() for name, tensor in model[0].state_dict().items()}


class Run:
    """The fine-tuning.

    Args:
        seed: of the body, of the new head and of the batches.
    """

    def __init__(self, seed: int) -> None:
        began = body(seed)
        torch.manual_seed(seed + 100)
        self.model = network()
        self.model[0].load_state_dict(began)
        rates = {0: 1e-5, 2: 3e-3}
        groups = [{"params": self.model[place].parameters(), "lr": rate} for place, rate in rates.items()]
        self.optimizer = torch.optim.AdamW(groups)
        self._seed = seed

    def loss(self, batch: Tensor) -> Tensor:
        """Cross-entropy on points, of the second map."""
        return nn.functional.cross_entropy(self.model(batch), (batch @ maps()[1]).argmax(1))

    def step(self, number: int) -> None:
        """One step on 32 new points."""
        self.optimizer.zero_grad()
        self.loss(points(32, torch.Generator().manual_seed(number + 1_000_000 * (self._seed + 1)))).backward()
        self.optimizer.step()

    @torch.no_grad()
    def measure(self) -> float:
        """Loss on the points that the search measures."""
        return self.loss(maps()[2]).item()

    @torch.no_grad()
    def final(self) -> float:
        """Loss on the points that neither training nor search sees."""
        return self.loss(maps()[3]).item()


def main() -> None:
    """Trains every method and seed, and prints a row a method."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=60, help="steps between saves")
    parser.add_argument("--restores", type=int, default=8)
    parser.add_argument("--threshold", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    rest = {"steps": options.steps, "every": options.every, "threshold": options.threshold}
    undisturbed = {s: trained(Run, s, restores=0, method=None, **rest).loss for s in options.seeds}
    table = Table(title=f"{options.steps} steps, {options.restores} restores, {options.threshold:.0%}")
    for column in ("method", "final cost by seed", "weights ratio"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for title, (method, exact) in METHODS.items():
        found = {
            s: trained(Run, s, restores=options.restores, method=method, exact=exact, **rest)
            for s in options.seeds
        }
        costs = [f"{one.loss / undisturbed[s] - 1:+.1%}" for s, one in found.items()]
        table.add_row(title, ", ".join(costs), ", ".join(f"{one.ratio:.1f}" for one in found.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
