"""A rework run that is small enough to be made in a second, in this very process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynaquant_core.experiments import events
from dynaquant_core.experiments.config import validate
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.process import work
from dynaquant_core.experiments.rework.entry import rework_entry

STEPS = 16


def settings(**changes: Any) -> dict[str, Any]:
    """A matrix factorisation of 1120 numbers; a run of it takes a second beside its process's start."""
    return {
        "name": "tiny",
        "kind": "rework",
        "model": {"name": "factorisation", "rank": 8},
        "data": {
            "name": "ratings",
            "users": 80,
            "items": 60,
            "density": 0.5,
            "batch": 512,
            "search_ratings": 1000,
            "heldout_ratings": 100,
        },
        "optimizer": {"name": "sgd", "lr": 8.0, "schedule": "constant"},
        "steps": STEPS,
        "checkpoint_every": 1,
        "evaluate": {"metric": "loss", "batch": 1000},
        "rework": {"size": 0.05, "repeats": 6, "between": [4, STEPS]},
        **changes,
    }


def made(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """The entry of a run, by what its process does."""
    (run,) = expand(validate(settings(**changes), "x"))
    job = Job(folder, run, saves=True)
    job.write()
    work(job, None)
    return rework_entry(run, events.read(job.diary)) | {"folder": folder.name}
