"""Kind ``transfer``: a pre-trained model is compressed once, without a base, and fine-tuned from that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from dynaquant_core.experiments.baseline import Baseline, find_baseline, train_baseline
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.crew import Task
from dynaquant_core.experiments.data.registry import fingerprint
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.kinds.base import Kind, Planned
from dynaquant_core.experiments.pretraining import pretraining, start_path
from dynaquant_core.experiments.record import record
from dynaquant_core.experiments.recording import find_recording, recording_folder
from dynaquant_core.experiments.results import transfer_entry
from dynaquant_core.experiments.supervisor import Watcher, complete

__all__ = ["Transferred"]


@final
class Transferred(Kind):
    """The baseline of a seed is its fine-tuning from the uncompressed weights; both need those first."""

    def preflight(self, run: Experiment, data: str) -> None:  # noqa: ARG002
        """Refuses weights that are not there, and a recording that is another run's or no longer whole."""
        start_path(run)
        if run.pretrained is not None and run.pretrained.source is None:
            training = pretraining(run)
            judged = fingerprint(training.data)
            find_recording(recording_folder(training, judged), training, judged)

    def job(self, folder: Path, run: Experiment, data: str, threads: int | None) -> Job:
        """Compressing, then training from what was compressed."""
        return Job(folder, run, saves=True, start=start_path(run), threads=threads, content=data)

    def needs(self, planned: Planned, free: Mapping[str, str], watcher: Watcher) -> Task | str | None:  # noqa: ARG002
        """The fine-tuning of this seed from the uncompressed weights."""
        key = planned.key
        if find_baseline(key, planned.run.checkpoint_every) is not None and planned.job.finished:
            return None
        return Task(f"baseline {key}", lambda: _baseline(planned, watcher))

    def entry(self, planned: Planned, watcher: Watcher) -> dict[str, Any]:
        """Compresses and fine-tunes."""
        baseline = _baseline(planned, watcher)
        if not planned.job.diary.exists():
            planned.job.write()
        diary = complete(planned.job, (), planned.label, watcher)
        return transfer_entry(planned.run, diary, baseline)


def _baseline(planned: Planned, watcher: Watcher) -> Baseline:
    """Found, or trained; the pre-trained weights are there afterwards unless everything is finished."""
    run, job, key = planned.run, planned.job, planned.key
    found = find_baseline(key, run.checkpoint_every)
    if found is not None and job.finished:
        return found
    training = pretraining(run)
    if run.pretrained is not None and run.pretrained.source is None:
        record(training, fingerprint(training.data), planned.label, watcher, job.threads)
    return found or train_baseline(
        run, planned.data, planned.machine, planned.label, watcher, start=job.start
    )
