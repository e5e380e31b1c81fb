"""Kind ``replay``: a run's exact states are recorded once, and every method saves those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.baseline import require_place
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.crew import Task
from dynaquant_core.experiments.events import Event
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.kinds.base import Kind, Planned
from dynaquant_core.experiments.record import record
from dynaquant_core.experiments.recording import find_recording, recording_folder, same_training
from dynaquant_core.experiments.results import replay_entry
from dynaquant_core.experiments.supervisor import Watcher, complete

__all__ = ["Replayed"]


@final
class Replayed(Kind):
    """A recording comes first; runs of the same training share one."""

    def preflight(self, run: Experiment, data: str) -> None:
        """Refuses a recording that is another run's, or no longer whole."""
        require_place()
        find_recording(recording_folder(run, data), run, data)

    def job(self, folder: Path, run: Experiment, data: str, threads: int | None) -> Job:
        """Saving what was recorded."""
        recording = recording_folder(run, data)
        return Job(folder, run, saves=True, recording=recording, threads=threads, content=data)

    def needs(self, planned: Planned, free: Mapping[str, str], watcher: Watcher) -> Task | str | None:  # noqa: ARG002
        """The recording, unless this run is finished."""
        if planned.job.finished:
            return None
        folder = recording_folder(planned.run, planned.data)
        return Task(f"recording {folder.name}", lambda: _recorded(planned, watcher))

    def entry(self, planned: Planned, watcher: Watcher) -> dict[str, Any]:
        """Saves every state that was recorded."""
        if not planned.job.finished:
            _recorded(planned, watcher)
            planned.job.write()
        diary = complete(planned.job, (), planned.label, watcher)
        recorded = events.read(planned.job.recorded)
        if not events.find(recorded, "final"):
            raise ExperimentError(
                f"{planned.job.recorded} does not say how the recorded training ended; remove "
                f"{planned.job.folder}, and the replay is made anew."
            )
        return replay_entry(planned.run, diary, recorded)


def _recorded(planned: Planned, watcher: Watcher) -> None:
    """The recording is there afterwards, the one that finished runs beside this one were measured on.

    Raises:
        ExperimentError: it was made anew meanwhile, and ends in other bits.
    """
    recording = record(planned.run, planned.data, planned.label, watcher, planned.job.threads)
    ends = _digest(recording.diary)
    for path in sorted(planned.job.folder.parent.glob("run-*/recorded.jsonl")):
        job = Job.read(path.parent)
        alike = job.recording is not None and job.content in {None, planned.data}
        alike = alike and same_training(job.experiment, planned.run)
        if job.finished and alike and _digest(events.read(path)) not in {None, ends}:
            raise ExperimentError(
                f"{recording.folder} was recorded anew, and ends in other weights than the recording that "
                f"{job.folder} was measured on (another torch, number of threads or machine is enough); "
                f"remove that run's folder, so that all see the same bytes, or give output=PATH."
            )


def _digest(diary: Sequence[Event]) -> str | None:
    """Of the weights that a training ended in; None where the diary does not say."""
    ended = events.find(diary, "final")
    return str(ended[-1]["weights_digest"]) if ended else None
