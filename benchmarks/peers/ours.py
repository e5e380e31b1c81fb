"""The project's own methods on the same recordings, as their replay left them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dynaquant_core as dq
from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.figures import setting_label

__all__ = ["of_ours"]

#: Stages of a save that turn a decision into a file.
WRITING = ("draft", "encode", "commit")

#: What has to be the same for rows to stand side by side: key of a run, attribute of an experiment.
SAME = {"seed": "seed", "steps": "steps", "interval_steps": "checkpoint_every", "moments": "moments"}


def of_ours(path: Path, experiment: Experiment) -> Iterator[dict[str, Any]]:
    """Runs of a results.json that saved what this recording holds: label, threshold and checkpoints of each.

    Where a run's store is still there its checkpoints are loaded once more, for the seconds of a read.

    Args:
        path: of the results of a replay.
        experiment: the recorded run's settings.

    Raises:
        ExperimentError: the file is no results.json, or holds no replay of this recording.
    """
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
        found = [run for run in runs if run["kind"] == "replay" and _is_of(run, experiment)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExperimentError(
            f"{path}: cannot be read as the results of an experiment ({error!r:.100})."
        ) from None
    if not found:
        raise ExperimentError(
            f"{path}: holds no replay of this recording ({experiment.model.name} on "
            f"{experiment.data.source}, seed {experiment.seed}, every {experiment.checkpoint_every} of "
            f"{experiment.steps} steps, moments {experiment.moments}); replay the same config."
        )
    for run in found:
        store = path.parent / str(run.get("folder", "")) / "store"
        yield {
            "peer": setting_label(run),
            "threshold": run["threshold"],
            "max_chain": run["max_chain"],
            "checkpoints": [_entry(entry, store) for entry in run["checkpoints"]],
        }


def _is_of(run: Mapping[str, Any], experiment: Experiment) -> bool:
    model = (run["model"], run["data"]) == (experiment.model.name, experiment.data.source)
    return model and all(run[key] == getattr(experiment, attribute) for key, attribute in SAME.items())


def _entry(entry: Mapping[str, Any], store: Path) -> dict[str, Any]:
    stages = entry["seconds"]
    seconds = {
        "search": stages.get("search", 0.0),
        "write": sum(stages.get(stage, 0.0) for stage in WRITING),
        "read": _read(store, entry["step"]) if store.is_dir() else None,
    }
    kept = (
        "step",
        "kind",
        "config",
        "parts",
        "degradation",
        "met",
        "unchanged",
        "movement_lost",
        "evaluations",
    )
    return {key: entry[key] for key in kept} | {"seconds": seconds, "bits": {}}


def _read(store: Path, step: int) -> float:
    started = time.perf_counter()
    dq.CheckpointStore(store).load(step)
    return time.perf_counter() - started
