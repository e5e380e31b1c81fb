"""Kind ``transfer``: a pre-trained model is compressed once, without a base, and fine-tuned from that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.baseline import (
    Baseline,
    baseline_key,
    find_baseline,
    require_place,
    train_baseline,
)
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.crew import Task
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.kinds.base import Kind, Planned
from dynaquant_core.experiments.pretraining import own_content, pretraining, start_digest, start_path
from dynaquant_core.experiments.record import record
from dynaquant_core.experiments.recording import find_recording, recording_folder, same_training
from dynaquant_core.experiments.results import transfer_entry
from dynaquant_core.experiments.supervisor import Watcher, complete

__all__ = ["Transferred"]


@final
class Transferred(Kind):
    """The baseline of a seed is its fine-tuning from the uncompressed weights; both need those first."""

    def preflight(self, run: Experiment, data: str) -> None:  # noqa: ARG002
        """Refuses weights that are not there, and a recording that is another run's or no longer whole."""
        require_place()
        start_path(run)
        if run.pretrained is not None and run.pretrained.source is None:
            training = pretraining(run)
            judged = own_content(training)
            find_recording(recording_folder(training, judged), training, judged)

    def job(self, folder: Path, run: Experiment, data: str, threads: int | None) -> Job:
        """Compressing, then training from what was compressed."""
        return Job(folder, run, saves=True, start=start_path(run), threads=threads, content=data)

    def needs(self, planned: Planned, free: Mapping[str, str], watcher: Watcher) -> Task | str | None:  # noqa: ARG002
        """The fine-tuning of this seed from the uncompressed weights."""
        if _found(planned) is not None and planned.job.finished:
            return None
        return Task(f"baseline {planned.key}", lambda: _baseline(planned, watcher))

    def entry(self, planned: Planned, watcher: Watcher) -> dict[str, Any]:
        """Compresses and fine-tunes."""
        baseline = _baseline(planned, watcher)
        if not planned.job.finished:  # its weights may lie elsewhere than when it began
            planned.job.write()
        diary = complete(planned.job, (), planned.label, watcher)
        return transfer_entry(planned.run, diary, baseline)


def _baseline(planned: Planned, watcher: Watcher) -> Baseline:
    """Found, or trained; the pre-trained weights are there afterwards unless everything is finished."""
    run, job = planned.run, planned.job
    found = _found(planned)
    if found is not None and job.finished:
        return found
    training = pretraining(run)
    if run.pretrained is not None and run.pretrained.source is None:
        record(training, own_content(training), planned.label, watcher, job.threads)
        _require_same_start(planned, training)
    start = start_path(run)  # of a finished run another than it had, after an update of torch
    return train_baseline(run, _read(planned), planned.machine, planned.label, watcher, start=start)


def _found(planned: Planned) -> Baseline | None:
    key = baseline_key(planned.run, _read(planned), planned.machine)
    return find_baseline(key, planned.run.checkpoint_every)


def _read(planned: Planned) -> str:
    """Fingerprint of its data, and of the weights that it begins with, as far as they are there."""
    start = planned.job.start
    digest = _begun_with(planned.job) or (start and start_digest(planned.run, start))
    return f"{planned.data} {digest}" if digest else planned.data


def _begun_with(job: Job) -> str | None:
    """Digest of the pre-trained weights that a run was compressed from; None where its diary does not say."""
    told = [event.get("begun_with") for event in events.find(events.read(job.diary), "reference")]
    return told[0] if told else None


def _require_same_start(planned: Planned, training: Experiment) -> None:
    """Refuses a pre-training that was made anew, in other bits than runs of this folder began with.

    Raises:
        ExperimentError: names one of them.
    """
    start = start_path(planned.run)
    digest = start_digest(planned.run, start)
    for path in sorted(planned.job.folder.parent.glob("run-*/job.json")):
        job = Job.read(path.parent)
        if job.experiment.pretrained is None or _begun_with(job) in {None, digest}:
            continue
        if same_training(pretraining(job.experiment), training):
            raise ExperimentError(
                f"{start.parent.parent} was recorded anew, and ends in other weights than those that "
                f"{job.folder} began with (another torch, number of threads or machine is enough); remove "
                f"that run's folder, so that all begin with the same, or give output=PATH."
            )
