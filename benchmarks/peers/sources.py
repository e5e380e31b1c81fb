"""Recordings: one that is there, or those of a config, made by the project's own code where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dynaquant_core.errors import ConfigError
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.config.source import load_experiment
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.pretraining import own_content
from dynaquant_core.experiments.record import record
from dynaquant_core.experiments.recording import Recording, find_recording, recording_folder
from dynaquant_core.experiments.supervisor import Report

__all__ = ["Recorded", "recorded"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished recording.

    Args:
        experiment: one run of it.
        recording: its states.
        thresholds: of all runs that share it, ascending.
    """

    experiment: Experiment
    recording: Recording
    thresholds: tuple[float, ...]


def recorded(source: str, overrides: Sequence[str], report: Report) -> list[Recorded]:
    """What a source names.

    Args:
        source: the folder of a recording, or a config: a YAML file or the name of a shipped one.
        overrides: ``key.sub=value`` for a config.
        report: takes progress of trainings.

    Raises:
        ConfigError: the source or an override is not valid.
        ExperimentError: the recording is not finished or damaged, its data is missing, or training failed.
        StorageError: the disk has no room for the states.
    """
    folder = Path(source)
    if folder.is_dir():
        if overrides:
            raise ConfigError(
                f"{source}: {overrides[0]!r} cannot change what was recorded; give the config instead."
            )
        return [_found(folder)]
    groups: dict[Path, tuple[Experiment, str, set[float]]] = {}
    for run in expand(load_experiment(source, overrides)):
        data = own_content(run)
        place = recording_folder(run, data)
        groups.setdefault(place, (run, data, set()))[2].add(run.threshold)
    return [
        Recorded(run, record(run, data, "the peers", report), tuple(sorted(thresholds)))
        for run, data, thresholds in groups.values()
    ]


def _found(folder: Path) -> Recorded:
    experiment = Job.read(folder).experiment
    recording = find_recording(folder, experiment, own_content(experiment))
    if recording is None:
        raise ConfigError(
            f"{folder}: the recording is not finished; run its config once more and it goes on."
        )
    return Recorded(experiment, recording, (experiment.threshold,))
