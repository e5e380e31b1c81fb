"""What restoring an optimizer from a moments policy costs: final held-out loss, policy by policy.

Trains the same run once with exact moments and once a policy.  At k steps spread over the run the optimizer's
state goes through the policy and back into the optimizer; the weights stay as they are, so that nothing but
the moments is measured.  Every run sees the same batches.  Prints one row a policy and seed; how exact runs
differ from seed to seed is the noise to hold the differences against.

    python benchmarks/moments.py gpt_shakespeare
    python benchmarks/moments.py gpt_shakespeare optimizer.betas='[0.9, 0.95]' --seeds 0 1 2
    python benchmarks/moments.py resnet_cifar --policies exact minimal second --restores 5
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from dynaquant_core.experiments.config import load_experiment
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.methods import Hints
from dynaquant_core.methods.base import Method
from dynaquant_core.methods.moments import MOMENTS, moments_method
from dynaquant_core.state import TensorSpec, assign_roles, flatten
from dynaquant_core.store.revision import TableSource


@dataclass(frozen=True, slots=True)
class Row:
    """One run: its final held-out metric and training loss, and what its moments took.

    Args:
        policy, seed: of the run.
        heldout, train: final held-out metric; mean training loss of the last tenth.
        cost: held-out metric against the exact run's of the same seed, a share; positive is worse.
        bytes_an_entry: mean over the restores, as deltas on each other; None for the exact run.
    """

    policy: str
    seed: int
    heldout: float
    train: float
    cost: float
    bytes_an_entry: float | None


def moments_of(optimizer: torch.optim.Optimizer, policy: Method) -> dict[str, Tensor]:
    """The optimizer's own tensors that a policy takes, by name."""
    tree = flatten({"optimizer": optimizer.state_dict()})
    roles = assign_roles(tree.leaves)
    found = {leaf.name: leaf.tensor for leaf in tree.leaves if roles[leaf.name] == "moment"}
    return {name: tensor for name, tensor in found.items() if policy.accepts(tensor)}


class Restorer:
    """Sends an optimizer's moments through a policy, each time as a delta on the time before.

    Args:
        name: of the policy.
    """

    def __init__(self, name: str) -> None:
        self.policy = moments_method(name)
        self.reference: Any = None
        self.sizes: list[float] = []

    def restore(self, optimizer: torch.optim.Optimizer) -> None:
        """Puts back what a reader would get."""
        live = moments_of(optimizer, self.policy)
        specs = {name: TensorSpec.of(tensor) for name, tensor in live.items()}
        default = self.policy.space(gradients=False).default
        draft = self.policy.draft(live, self.reference, default, Hints())
        streams = list(draft.encode()[0])
        self.reference = self.policy.decode(TableSource(specs, streams), self.reference)
        for name, tensor in self.reference.items():
            live[name].copy_(tensor)
        entries = sum(tensor.numel() for tensor in live.values())
        self.sizes.append(sum(len(stream.payload) for stream in streams) / entries)


def trained(experiment: Experiment, policy: str, restores: int) -> tuple[float, float, float | None]:
    """(held-out metric, training loss at the end, bytes an entry) of one run."""
    trainer = Trainer(experiment)
    steps = experiment.steps
    due = {round(steps * (number + 1) / (restores + 1)) for number in range(restores)}
    restorer = Restorer(policy)
    losses = []
    for step in range(1, steps + 1):
        losses.append(trainer.advance())
        if step in due and policy != "exact":
            restorer.restore(trainer.optimizer)
    heldout = statistics.fmean(trainer.quality(trainer.data.heldout))
    last = statistics.fmean(losses[-max(1, steps // 10) :])
    return heldout, last, statistics.fmean(restorer.sizes) if restorer.sizes else None


def measure(
    config: str, overrides: Sequence[str], policies: Sequence[str], seeds: Sequence[int], k: int
) -> list[Row]:
    """One row a seed and policy; the exact run of each seed comes first."""
    rows = []
    for seed in seeds:
        experiment = load_experiment(config, [*overrides, f"seed={seed}"])
        sign = 1 if experiment.evaluate.mode == "min" else -1
        exact = None
        for policy in dict.fromkeys(["exact", *policies]):
            heldout, train, size = trained(experiment, policy, k)
            exact = heldout if exact is None else exact
            cost = sign * (heldout - exact) / abs(exact)
            rows.append(Row(policy, seed, heldout, train, cost, size))
    return rows


def table_of(rows: Sequence[Row], title: str) -> Table:
    """The rows as a table, with a mean over the seeds at the end of each policy."""
    table = Table("policy", "seed", "held-out", "train", "cost", "bytes an entry", title=title)
    for policy in dict.fromkeys(row.policy for row in rows):
        own = [row for row in rows if row.policy == policy]
        for row in own:
            size = "" if row.bytes_an_entry is None else f"{row.bytes_an_entry:.4f}"
            table.add_row(
                policy, str(row.seed), f"{row.heldout:.4f}", f"{row.train:.4f}", f"{row.cost:+.2%}", size
            )
        costs = [row.cost for row in own]
        error = statistics.stdev(costs) / len(costs) ** 0.5 if len(costs) > 1 else 0.0
        table.add_row(policy, "mean", "", "", f"{statistics.fmean(costs):+.2%} +- {error:.2%}", "")
    return table


def main() -> None:
    """Reads the command line, trains, prints a table and JSON."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("config", help="an experiment's name or YAML file")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE, as of dynaquant run")
    parser.add_argument("--policies", nargs="+", default=list(MOMENTS), choices=list(MOMENTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--restores", type=int, default=10, metavar="K")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = measure(given.config, given.overrides, given.policies, given.seeds, given.restores)
    title = f"{given.config} {' '.join(given.overrides)}, k = {given.restores}"
    Console(width=160).print(table_of(rows, title))
    print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
