"""One training run, many stores: compares method options and thresholds on the very same weights.

Saving changes nothing in a run, so one training serves any number of checkpointers, each with its own
options, threshold and folder.  Prints one row a store, in real bytes.

    python benchmarks/sweep.py gpt_shakespeare lattice@0.01 lattice@0.05 lattice,moments=minimal@0.01
    python benchmarks/sweep.py gpt_shakespeare dynaquant@0.01 dynaquant,sigma=0.1,coder=paper@0.05
    python benchmarks/sweep.py gpt_shakespeare default,max_chain=16@0.01 --set seed=1

A store is options and a threshold.  The first option may be a method's name, else the project's default is
meant; ``moments`` and ``max_chain`` are the store's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from entropy import summary
from rich.console import Console
from rich.progress import track
from rich.table import Table

import dynaquant_core as dq
from dynaquant_core.errors import ConfigError
from dynaquant_core.experiments.config import load_experiment
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.methods.registry import DEFAULT_METHOD, resolve_method
from dynaquant_core.search import Degradation, Quality, degradation


@dataclass(frozen=True)
class Wanted:
    """What one store is made with."""

    method: dict[str, Any]
    store: dict[str, Any]
    threshold: float


def parsed(store: str) -> Wanted:
    """``"lattice,moments=none@0.05"`` in parts; values are read as YAML.

    Raises:
        ConfigError: there is no threshold, a word is no ``KEY=VALUE``, or there is no such method or option.
    """
    told, _, threshold = store.partition("@")
    words = told.split(",")
    name = "default" if "=" in words[0] else words.pop(0)
    name = DEFAULT_METHOD if name == "default" else name
    odd = next((word for word in words if not all(word.partition("=")[::2])), None)
    if odd is not None:
        raise ConfigError(f"a store's options are KEY=VALUE, as in lattice,max_chain=4@0.01, got {odd!r}.")
    options = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in words)}
    stores = {key: options.pop(key) for key in ("moments", "max_chain") if key in options}
    method = {"name": name, **options}
    resolve_method(method)
    try:
        share = float(threshold)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ConfigError(
            f"a store is options and a threshold of at least 0 and below 1, as lattice@0.01, got {store!r}."
        )
    return Wanted(method, stores, share)


def checkpointer(trainer: Trainer, every: int, folder: Path, wanted: Wanted) -> dq.Checkpointer:
    """A checkpointer of the trainer's run as wanted, in a folder of its own."""
    return dq.Checkpointer(
        folder,
        trainer.model,
        trainer.optimizer,
        scheduler=trainer.scheduler,
        every=every,
        evaluate=lambda: trainer.quality(trainer.data.search),
        threshold=wanted.threshold,
        method=wanted.method,
        **wanted.store,
    )


class HeldOut:
    """Quality on the held-out set of what each store gives back, against the live model's.

    Args:
        trainer: the run; its data holds the set.
        mode: of the metric.
    """

    def __init__(self, trainer: Trainer, mode: str) -> None:
        self.trainer, self.mode, self.reader = trainer, mode, trainer.reader()
        self.found: dict[Path, list[Degradation]] = {}

    def measure(self, stores: Iterable[Path], step: int) -> None:
        """Takes the measurement at a step that every store has just saved."""
        batches = self.trainer.data.heldout
        reference = Quality.of(self.trainer.quality(batches))
        for path in stores:
            self.reader.load_state_dict(dq.CheckpointStore(path).load(step)["model"])
            got = Quality.of(self.trainer.quality(batches, self.reader))
            self.found.setdefault(path, []).append(degradation(reference, got, self.mode))

    def within(self, path: Path, threshold: float) -> str:
        """Checkpoints whose degradation less two standard errors is within 1.5 times the threshold.

        Of one value (a single batch, a correlation) there is no standard error: nothing is taken off.
        """
        within = [found.mean - 2 * found.se <= 1.5 * threshold for found in self.found[path]]
        worst = max(found.mean for found in self.found[path])
        return f"{sum(within)} of {len(within)}, worst {worst:.2%}"


def row(name: str, store: dq.CheckpointStore, heldout: HeldOut) -> dict[str, Any]:
    """What a store's checkpoints took, and what its searches cost."""
    infos = [store.info(step) for step in store.steps()]
    wanted = parsed(name)
    excess = summary(store.path) if wanted.method["name"] == "dynaquant" else {}
    raw = sum(info.parts["weight"]["raw_bytes"] for info in infos)
    stored = sum(info.parts["weight"]["stored_bytes"] for info in infos)
    return {
        "store": name,
        "weights": round(raw / stored, 2),
        "all": round(sum(i.raw_bytes for i in infos) / sum(i.stored_bytes for i in infos), 2),
        "met": f"{sum(bool(info.met) for info in infos)} of {len(infos)}",
        "held-out met": heldout.within(store.path, wanted.threshold),
        "candidates": statistics.median(info.evaluations for info in infos),
        "exhaustive": sum(bool(info.report.get("exhaustive")) for info in infos),
        "points": " ".join(point(info.config) for info in infos),
        "over entropy": excess.get("ratio"),
        "worst stream": excess.get("worst_ratio"),
    }


def point(config: Any) -> str:
    """The first setting of a config: bins, or the scale of a lattice; a dash where nothing can be set."""
    first = next(iter(config.as_dict().values()), "-")
    return f"{first:.2f}" if isinstance(first, float) else str(first)


def sweep(config: str, changes: Sequence[str], stores: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """Trains once and fills every store."""
    wanted = {store: parsed(store) for store in stores}
    experiment = load_experiment(config, changes)
    trainer = Trainer(experiment)
    heldout = HeldOut(trainer, experiment.evaluate.mode)
    paths = {store: folder / str(index) for index, store in enumerate(stores)}
    savers = [
        checkpointer(trainer, experiment.checkpoint_every, path, wanted[store])
        for store, path in paths.items()
    ]
    for step in track(range(1, experiment.steps + 1), description=config):
        trainer.advance()
        for saver in savers:
            saver.step()
        if step % experiment.checkpoint_every == 0:
            for saver in savers:
                saver.wait()
            heldout.measure(paths.values(), step)
    for saver in savers:
        saver.close()
    return [row(store, dq.CheckpointStore(path), heldout) for store, path in paths.items()]


def main() -> None:
    """Reads the command line, sweeps, prints a table and JSON."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("config", help="an experiment's name or YAML file")
    told = "[METHOD,]KEY=VALUE[,KEY=VALUE...]@THRESHOLD, METHOD@THRESHOLD or default@THRESHOLD"
    parser.add_argument("stores", nargs="+", help=told)
    change = "a change to the experiment; may be given again"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=change)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory(prefix="dynaquant-sweep-") as folder:
        try:
            rows = sweep(arguments.config, arguments.set, arguments.stores, Path(folder))
        except ConfigError as error:
            parser.error(str(error))
    table = Table(*rows[0], title=arguments.config)
    for found in rows:
        table.add_row(*map(str, found.values()))
    Console(width=160).print(table)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
