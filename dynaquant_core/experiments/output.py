"""The output folder of an experiment: made, continued, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynaquant_core.errors import ExperimentError, StorageError
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.job import write_json

__all__ = ["claim"]

#: Says which experiment a folder belongs to.
CONFIG = "config.json"


def claim(experiment: Experiment) -> Path:
    """The folder that an experiment writes to: a new one, its own from before, or one where nothing began.

    Raises:
        ExperimentError: the path is a file, or a folder that belongs to another config or to something else.
        StorageError: the system refuses.
    """
    folder = Path(experiment.output or Path("runs") / experiment.name)
    try:
        if folder.exists() and not folder.is_dir():
            raise ExperimentError(f"output: {folder} is a file; give a folder with output=PATH.")
        if (folder / CONFIG).is_file():
            if not _began(folder):  # a config that failed before its first step, and was mended since
                _forget(folder)
            else:
                _must_match(folder, experiment)
                return folder
        elif folder.exists() and any(folder.iterdir()):
            raise ExperimentError(
                f"output: {folder} is not empty and holds no experiment; give another with output=PATH."
            )
    except OSError as error:
        raise StorageError(f"output: {folder} cannot be read: {error.strerror}.") from None
    write_json(folder / CONFIG, _settings(experiment))
    return folder


def _began(folder: Path) -> bool:
    """Whether a training process of this folder's experiment ever got as far as its diary."""
    return any(folder.glob("run-*/events.jsonl")) or (folder / "results.json").exists()


def _forget(folder: Path) -> None:
    for job in folder.glob("run-*/job.json"):
        job.unlink()


def _must_match(folder: Path, experiment: Experiment) -> None:
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError:
        raise ExperimentError(
            f"output: {folder / CONFIG} is not JSON; remove the folder or give another."
        ) from None
    wanted = _settings(experiment)
    if found == wanted:
        return
    keys = found.keys() | wanted.keys() if isinstance(found, dict) else wanted.keys()
    differing = [
        key for key in sorted(keys) if not isinstance(found, dict) or found.get(key) != wanted.get(key)
    ]
    raise ExperimentError(
        f"output: {folder} holds results of another config (different: {', '.join(differing)}); "
        f"give another folder with output=PATH, or remove it."
    )


def _settings(experiment: Experiment) -> dict[str, Any]:
    """All settings but where they go, so that a moved folder stays its experiment's."""
    return {key: value for key, value in experiment.as_dict().items() if key != "output"}
