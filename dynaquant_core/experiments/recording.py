"""A run's exact states on disk: trained and written once, then read by every method that is tried on them.

A recording is a folder, found again by what decides the run:

| file | what |
|---|---|
| recording.json | what was trained: written first, compared before anything else is believed |
| events.jsonl | the diary of the training |
| states/step-N.dq | exact state after N steps, and averages of the gradients before it; of 0 the model only |
| finished.json | written last, once every state is there; without it nothing is replayed |
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dynaquant_core.errors import CorruptFileError, DynaQuantError, ExperimentError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.baseline import DECISIVE, KEPT, RECORD
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.events import Event
from dynaquant_core.experiments.job import write_json
from dynaquant_core.experiments.machine import library_of
from dynaquant_core.experiments.trainer import device_name
from dynaquant_core.files import load_file

__all__ = [
    "FOLDER",
    "WINDOW",
    "Recording",
    "as_one_life",
    "begin",
    "checkpoint_steps",
    "find_recording",
    "finish",
    "load_state",
    "recording_folder",
    "require_same",
    "same_training",
    "state_path",
]

#: Below the current folder, beside the baselines.
FOLDER = Path("runs") / ".recordings"

#: Optimizer steps before a checkpoint over which gradients are averaged: the Checkpointer's own default.
WINDOW = 50

#: What to do about one that is not as it should be.
_AGAIN = "remove the folder, and it is recorded anew"

#: Counts up when a recorded state holds more than before.
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """A finished recording.

    Args:
        folder: where it is.
        steps: of its checkpoints, ascending.
    """

    folder: Path
    steps: tuple[int, ...]

    @property
    def diary(self) -> list[Event]:
        """Events of the training, kills of the recording included."""
        return events.read(self.folder / "events.jsonl")

    def load(self, step: int) -> dict[str, Any]:
        """``{"state", "gradients", "collector"}`` of a step: see `tape.Tape`.

        Raises:
            ExperimentError: the file is missing or damaged.
        """
        return load_state(self.folder, step)


def recording_folder(experiment: Experiment, fingerprint: str) -> Path:
    """Where the recording of a run belongs.

    Unlike a baseline's, its name does not depend on the number of threads: bytes that were recorded are the
    same bytes for every method.

    Args:
        experiment: one run; how it is saved does not matter.
        fingerprint: of its data.
    """
    text = json.dumps(_about(experiment, fingerprint), sort_keys=True)
    return FOLDER / hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def require_same(folder: Path, experiment: Experiment, fingerprint: str) -> None:
    """Refuses a folder that holds the recording of another run; one where nothing began is fine.

    Raises:
        ExperimentError: names what differs.
    """
    path, wanted = folder / "recording.json", _about(experiment, fingerprint)
    if not path.exists():
        return
    found = _json(path)
    differing = [key for key in wanted if found.get(key) != wanted[key]]
    if differing:
        raise ExperimentError(
            f"{folder} holds the recording of another run (different: {', '.join(differing)}); remove it, "
            f"and it is recorded anew."
        )


def same_training(one: Experiment, other: Experiment) -> bool:
    """Whether two runs are one training, wherever each of them was recorded; their data's content aside."""
    first, second = one.as_dict(), other.as_dict()
    return all(first[name] == second[name] for name in DECISIVE)


def begin(folder: Path, experiment: Experiment, fingerprint: str) -> None:
    """Says what will be recorded in a folder, which is made.

    Raises:
        ExperimentError: it holds the recording of another run.
        StorageError: the system refuses.
    """
    require_same(folder, experiment, fingerprint)
    write_json(folder / "recording.json", _about(experiment, fingerprint))


def finish(folder: Path, experiment: Experiment) -> Recording:
    """Marks a recording whose training is done as whole.

    Raises:
        ExperimentError: a state is missing.
    """
    steps = checkpoint_steps(experiment)
    sizes = {str(step): _size(folder, step) for step in (0, *steps)}
    write_json(folder / "finished.json", {"bytes": sizes})
    return Recording(folder, steps)


def find_recording(folder: Path, experiment: Experiment, fingerprint: str) -> Recording | None:
    """The finished recording of a run; None where there is none, or where it was cut short.

    Raises:
        ExperimentError: it is another run's, a state has gone since it was finished, or its diary is damaged.
    """
    require_same(folder, experiment, fingerprint)
    mark = folder / "finished.json"
    if not mark.exists():
        return None
    steps = checkpoint_steps(experiment)
    sizes = _json(mark).get("bytes")
    found = {str(step): _size(folder, step) for step in (0, *steps)}
    if sizes != found:
        raise ExperimentError(f"{folder}: states are not as they were written; {_AGAIN}.")
    recording = Recording(folder, steps)
    if not events.find(recording.diary, "final"):
        raise ExperimentError(f"{folder}: events.jsonl does not say how the training ended; {_AGAIN}.")
    return recording


def checkpoint_steps(experiment: Experiment) -> tuple[int, ...]:
    """Steps of a run at which there is a checkpoint, ascending."""
    every = experiment.checkpoint_every
    return tuple(range(every, experiment.steps + 1, every))


def state_path(folder: Path, step: int) -> Path:
    """File of the state after ``step`` steps."""
    return folder / "states" / f"step-{step}.dq"


def load_state(folder: Path, step: int) -> dict[str, Any]:
    """``{"state", "gradients", "collector"}`` of a step, whether or not its recording is finished.

    Raises:
        ExperimentError: the file is missing or damaged.
    """
    path = state_path(folder, step)
    try:
        tree = load_file(path)
    except CorruptFileError as error:
        raise ExperimentError(f"{path}: the recorded state is damaged ({error}); {_AGAIN}.") from None
    except DynaQuantError as error:
        raise ExperimentError(f"{path}: the recorded state cannot be read ({error}); {_AGAIN}.") from None
    if not isinstance(tree, dict) or {"state", "gradients", "collector"} - tree.keys():
        raise ExperimentError(f"{path}: holds no recorded state; {_AGAIN}.")
    return tree


def as_one_life(diary: Sequence[Event]) -> list[Event]:
    """How training went, as if it had never been interrupted: what was done twice, once.

    A recording goes on from its last exact state, bit for bit, so that both times said the same.

    Example:
        >>> twice = [{"event": "loss", "step": step, "loss": 1.0} for step in (1, 2, 2, 3)]
        >>> [event["step"] for event in as_one_life(twice)]
        [1, 2, 3]
    """
    last = {(event["step"], event["event"]): event for event in diary if event["event"] in KEPT}
    return [last[place] for place in sorted(last, key=lambda place: place[0])]


def _about(experiment: Experiment, fingerprint: str) -> dict[str, Any]:
    """What decides the recorded states, JSON-ready."""
    settings = experiment.as_dict()
    facts = {"format": [FORMAT, RECORD, WINDOW], "data_content": fingerprint}
    machine = {"torch": torch.__version__, "device": device_name(), **library_of(experiment.model)}
    return {**{name: settings[name] for name in DECISIVE}, **facts, **machine}


def _size(folder: Path, step: int) -> int:
    path = state_path(folder, step)
    try:
        return path.stat().st_size
    except OSError as error:
        raise ExperimentError(
            f"{path}: the recorded state is missing ({error.strerror}); {_AGAIN}."
        ) from None


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        data = None
    if not isinstance(data, dict):
        raise ExperimentError(f"{path}: cannot be read as JSON; {_AGAIN}.")
    return data
