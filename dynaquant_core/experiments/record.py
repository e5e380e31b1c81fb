"""Makes the recording that a replay needs, once; a run that was recorded is a baseline too."""

from __future__ import annotations

from dynaquant_core.experiments.baseline import baseline_key, publish
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.machine import lives_on
from dynaquant_core.experiments.recording import (
    Recording,
    as_one_life,
    begin,
    find_recording,
    finish,
    recording_folder,
)
from dynaquant_core.experiments.supervisor import Report, complete

__all__ = ["record"]


def record(
    experiment: Experiment, fingerprint: str, label: str, report: Report, threads: int | None = None
) -> Recording:
    """The recording of a run: found, or trained in a process of its own; one that was cut short goes on.

    Args:
        experiment: one run.
        fingerprint: of its data.
        label: name of the run that needs it first, in progress reports and errors.
        report: takes progress.
        threads: of the process; None: as many as there are.  One that has begun keeps its number.

    Raises:
        ExperimentError: the training process failed, or the folder holds another run's recording.
        StorageError: the disk has no room for the states, or refuses.
    """
    folder = recording_folder(experiment, fingerprint)
    found = find_recording(folder, experiment, fingerprint)
    if found is not None:
        return found
    begin(folder, experiment, fingerprint)
    if not (folder / "job.json").exists():
        Job(folder, experiment, saves=False, records=True, threads=threads).write()
    job = Job.read(folder)
    diary = complete(job, (), f"recording for {label}", report)
    recording = finish(folder, experiment)
    machines = lives_on(diary)
    if len(machines) == 1:  # one that went on elsewhere is nobody's baseline
        key = baseline_key(experiment, fingerprint, machines[0])
        publish(as_one_life(diary), key, experiment.checkpoint_every)
    return recording
