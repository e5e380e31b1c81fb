"""One training run, many stores: compares method options and thresholds on the very same weights.

Saving changes nothing in a run, so one training serves any number of checkpointers, each with its own
options, threshold and folder.  Prints one row a store, in real bytes.

    python benchmarks/sweep.py gpt_shakespeare --options sigma=0.1 coder=paper --thresholds 0.01 0.05
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from rich.progress import track
from rich.table import Table

import dynaquant_core as dq
from dynaquant_core.experiments.config import load_experiment
from dynaquant_core.experiments.trainer import Trainer


def options_of(text: str) -> dict[str, Any]:
    """``"sigma=0.1,coder=paper"`` as a mapping; values are read as YAML."""
    pairs = [part.split("=", 1) for part in text.split(",") if part and part != "default"]
    return {key: yaml.safe_load(value) for key, value in pairs}


def checkpointer(
    trainer: Trainer, every: int, folder: Path, options: dict[str, Any], threshold: float
) -> dq.Checkpointer:
    """A checkpointer of the trainer's run with the given options, in a folder of its own."""
    return dq.Checkpointer(
        folder,
        trainer.model,
        trainer.optimizer,
        scheduler=trainer.scheduler,
        every=every,
        evaluate=lambda: trainer.quality(trainer.data.search),
        threshold=threshold,
        method={"name": "dynaquant", **options},
    )


def row(name: str, threshold: float, store: dq.CheckpointStore) -> dict[str, Any]:
    """What a store's checkpoints took, and what its searches cost."""
    infos = [store.info(step) for step in store.steps()]
    raw = sum(info.parts["weight"]["raw_bytes"] for info in infos)
    stored = sum(info.parts["weight"]["stored_bytes"] for info in infos)
    return {
        "options": name,
        "threshold": threshold,
        "weights_ratio": round(raw / stored, 2),
        "ratio": round(sum(i.raw_bytes for i in infos) / sum(i.stored_bytes for i in infos), 2),
        "met": f"{sum(bool(info.met) for info in infos)} of {len(infos)}",
        "candidates_median": statistics.median(info.evaluations for info in infos),
        "exhaustive": sum(bool(info.report.get("exhaustive")) for info in infos),
        "configs": " ".join(str(info.config.bins) for info in infos),
    }


def sweep(config: str, options: list[str], thresholds: list[float], folder: Path) -> list[dict[str, Any]]:
    """Trains once and fills a store for every combination."""
    experiment = load_experiment(config)
    trainer = Trainer(experiment)
    stores = {
        (name, threshold): folder / f"{index}-{threshold}"
        for index, name in enumerate(options)
        for threshold in thresholds
    }
    savers = [
        checkpointer(trainer, experiment.checkpoint_every, path, options_of(name), threshold)
        for (name, threshold), path in stores.items()
    ]
    for _ in track(range(experiment.steps), description=config):
        trainer.advance()
        for saver in savers:
            saver.step()
    for saver in savers:
        saver.close()
    return [row(name, threshold, dq.CheckpointStore(path)) for (name, threshold), path in stores.items()]


def main() -> None:
    """Reads the command line, sweeps, prints a table and JSON."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("config", help="an experiment's name or YAML file")
    told = "KEY=VALUE[,KEY=VALUE...], or default"
    parser.add_argument("--options", nargs="+", default=["default"], help=told)
    parser.add_argument("--thresholds", nargs="+", type=float, default=[0.01])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory(prefix="dynaquant-sweep-") as folder:
        rows = sweep(arguments.config, arguments.options, arguments.thresholds, Path(folder))
    table = Table(*rows[0], title=arguments.config)
    for found in rows:
        table.add_row(*map(str, found.values()))
    Console(width=160).print(table)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
