"""The output folder of an experiment: made, continued, or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from dynaquant_core.errors import ConfigError, ExperimentError, StorageError
from dynaquant_core.experiments.config.experiment import Experiment, validate
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.job import Job, write_json
from dynaquant_core.store.disk import guarded
from dynaquant_core.store.lock import WriterLock
from dynaquant_core.store.names import LOCK_FILE

__all__ = ["claim", "claimed", "run_folders"]

#: Says which experiment a folder belongs to.
CONFIG = "config.json"

#: A config that was being written when its process died (`job.write_json`).
PARTIAL = re.compile(r"config\.json(\.\d+){1,2}")

#: Names in an output folder before a first step.
OWN = re.compile(rf"config\.json|{PARTIAL.pattern}|run-\d+|{re.escape(LOCK_FILE)}")

#: Keys that the config of every experiment has had, in all versions.
REQUIRED = {"name", "model", "data", "steps"}


@contextmanager
def claimed(experiment: Experiment) -> Iterator[Path]:
    """The folder of `claim`, for this process alone until the block ends: two would write one diary.

    Raises:
        StoreLockedError: another process works in it; names it.
        ExperimentError, StorageError: see `claim`.
    """
    folder = _path(experiment)
    _require_own(folder, experiment)  # before a lock is put into what may be somebody else's
    with guarded("make", folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(folder, "output folder")
    lock.acquire(take_over=False)
    try:
        yield claim(experiment)
    finally:
        lock.release(remove=True)


def claim(experiment: Experiment) -> Path:
    """The folder that an experiment writes to: a new one, its own from before, or one where nothing began.

    Its own is that of the same config, or of one whose runs are all among those of the new one: a grid that
    gained methods, thresholds or seeds goes on with what it has.

    Raises:
        ExperimentError: the path is a file, or a folder that belongs to another config or to something else.
        StorageError: the system refuses.
    """
    folder = _path(experiment)
    _require_own(folder, experiment)
    if not _began(folder):  # a config that was mended since
        with guarded("clear", folder):
            _forget(folder)
    write_json(folder / CONFIG, _settings(experiment))
    return folder


def _path(experiment: Experiment) -> Path:
    return Path(experiment.output or Path("runs") / experiment.name)


def _require_own(folder: Path, experiment: Experiment) -> None:
    try:
        if folder.exists() and not folder.is_dir():
            raise ExperimentError(f"output: {folder} is a file; give a folder with output=PATH.")
        if (folder / CONFIG).is_file() and _began(folder):
            _must_hold(folder, experiment)
        elif _strange(folder):
            raise ExperimentError(
                f"output: {folder} is not empty and holds no experiment; give another with output=PATH."
            )
    except OSError as error:
        raise StorageError(f"output: {folder} cannot be read: {error.strerror}.") from None


def _began(folder: Path) -> bool:
    """Whether a training process of this folder's experiment ever got as far as its diary."""
    return any(folder.glob("run-*/events.jsonl")) or (folder / "results.json").exists()


def _strange(folder: Path) -> bool:
    """Whether there is anything that is not an experiment's, or of one that failed before its first step."""
    return (
        folder.exists()
        and any(path.name != LOCK_FILE for path in folder.iterdir())
        and not _failed_early(folder)
    )


def _failed_early(folder: Path) -> bool:
    """Whether a folder holds only what an experiment of ours writes before its first step.

    Other projects write a config.json too, a model's folder for one: it has to name an experiment's keys, in
    whatever version, and to be alone with folders of runs.
    """
    names = [path.name for path in folder.iterdir()]
    if not all(map(OWN.fullmatch, names)):
        return False
    if not (folder / CONFIG).is_file():  # its very first config was being written
        return any(map(PARTIAL.fullmatch, names))
    try:
        data = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.keys() >= REQUIRED


def _forget(folder: Path) -> None:
    partial = [path for path in folder.glob("config.json.*") if PARTIAL.fullmatch(path.name)]
    for path in (*folder.glob("run-*/job.json"), *partial):
        path.unlink()


def _must_hold(folder: Path, experiment: Experiment) -> None:
    """Refuses a config that lacks a run which began in the folder; what was removed is not held."""
    before = _before(folder / CONFIG)
    wanted = [_settings(run) for run in expand(experiment)]
    begun = [] if before is None else sorted(path.parent for path in folder.glob("run-*/events.jsonl"))
    lost = [path.name for path in begun if not (path / "job.json").exists() or _begun(path) not in wanted]
    if before is not None and not lost:
        return
    found, now = {} if before is None else _settings(before), _settings(experiment)
    differing = [key for key in sorted(found.keys() | now.keys()) if found.get(key) != now.get(key)]
    grows = {"axis", "grid", "seed", "seeds"}.issuperset(differing)
    grown = f"a grid may gain runs but lose none, and {' and '.join(lost)} would be lost; " if grows else ""
    what = "what is no longer wanted there" if grows else "it"

    raise ExperimentError(
        f"output: {folder} holds results of another config (different: {', '.join(differing)}); "
        f"{grown}give another folder with output=PATH, or remove {what}."
    )


def _before(path: Path) -> Experiment | None:
    """The experiment that a folder belongs to; None where this version would refuse its config."""
    try:
        return validate(json.loads(path.read_text(encoding="utf-8")), str(path))
    except ConfigError:
        return None
    except ValueError:
        raise ExperimentError(f"output: {path} is not JSON; remove the folder or give another.") from None


def run_folders(folder: Path, runs: Sequence[Experiment]) -> list[Path]:
    """Where each run goes: to the folder where it began, whatever its place in the grid was, or a new one.

    Args:
        folder: of the experiment.
        runs: of its grid.
    """
    begun = {path.parent: _begun(path.parent) for path in sorted(folder.glob("run-*/job.json"))}
    free = (
        path for path in map(folder.joinpath, map("run-{}".format, count(len(runs)))) if path not in begun
    )
    places = []
    for index, run in enumerate(runs):
        own = next((path for path, settings in begun.items() if settings == _settings(run)), None)
        usual = folder / f"run-{index}"
        places.append(own or (next(free) if usual in begun else usual))
    return places


def _begun(folder: Path) -> dict[str, Any]:
    return _settings(Job.read(folder).experiment)


def _settings(experiment: Experiment) -> dict[str, Any]:
    """All settings but where they go, so that a moved folder stays its experiment's."""
    return {key: value for key, value in experiment.as_dict().items() if key != "output"}
