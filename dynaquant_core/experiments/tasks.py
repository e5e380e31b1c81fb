"""The parts of a grid, and what each of them has to wait for, so that nothing is trained twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynaquant_core.experiments import events
from dynaquant_core.experiments.baseline import baseline_key, find_baseline, publish, train_baseline
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.crew import Task
from dynaquant_core.experiments.failures import failure_steps
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.record import record
from dynaquant_core.experiments.recording import recording_folder
from dynaquant_core.experiments.restores import restores_of
from dynaquant_core.experiments.results import replay_entry, run_entry
from dynaquant_core.experiments.supervisor import Watcher, complete

__all__ = ["Planned", "folder_job", "grid_tasks"]


@dataclass(frozen=True, slots=True)
class Planned:
    """One run of a grid.

    Args:
        run: its settings.
        job: its folder and threads, as it began or will begin.
        data: fingerprint of its data.
        label: its name in progress reports.
    """

    run: Experiment
    job: Job
    data: str
    label: str

    @property
    def key(self) -> str:
        """Name of its baseline."""
        return baseline_key(self.run, self.data, self.job.threads)

    @property
    def failures(self) -> list[int]:
        """Steps at which it fails."""
        return failure_steps(self.run.failures, self.run.steps, self.run.checkpoint_every)


def grid_tasks(plan: Mapping[str, Planned], watcher: Watcher) -> list[Task]:
    """A task for each run, named as in ``plan``, and one for each recording or baseline that is not there.

    A run without failures is the baseline of those with failures, which wait for it.  Run tasks give their
    entry of results.json.

    Args:
        plan: name -> run.
        watcher: takes progress, and knows the processes.
    """
    before: dict[str, Task] = {}
    runs: list[Task] = []
    free = {run.key: name for name, run in reversed(list(plan.items())) if not run.failures}
    for name, planned in sorted(plan.items(), key=lambda item: bool(item[1].failures)):
        needed = _needed(planned, free, watcher)
        if isinstance(needed, Task):
            before.setdefault(needed.name, needed)
        needs = needed.name if isinstance(needed, Task) else needed
        runs.append(Task(name, _Run(planned, watcher), () if needs is None else (needs,)))
    return [*before.values(), *runs]


def _needed(planned: Planned, free: Mapping[str, str], watcher: Watcher) -> Task | str | None:
    """What a run waits for: a task of its own, the name of another run, or nothing."""
    run, threads = planned.run, planned.job.threads
    if run.kind == "replay":
        if planned.job.finished:
            return None
        folder = recording_folder(run, planned.data)
        return Task(f"recording {folder.name}", lambda: record(run, planned.data, watcher, threads))
    key = planned.key
    if not planned.failures or find_baseline(key, run.checkpoint_every) is not None:
        return None
    return free.get(key) or Task(f"baseline {key}", lambda: train_baseline(run, key, watcher, threads))


@dataclass(frozen=True, slots=True)
class _Run:
    """Brings one run to its end; called, it gives its entry."""

    planned: Planned
    watcher: Watcher

    def __call__(self) -> dict[str, Any]:
        entry = self._replayed() if self.planned.run.kind == "replay" else self._trained()
        return entry | {"folder": self.planned.job.folder.name}

    def _trained(self) -> dict[str, Any]:
        planned, run = self.planned, self.planned.run
        if not (planned.job.folder / "job.json").exists():
            planned.job.write()
        kills: Sequence[int] = planned.failures if run.restores == "kill" else ()
        diary = complete(planned.job, kills, planned.label, self.watcher)
        key, interrupted = planned.key, any(restore["restored_step"] for restore in restores_of(diary))
        if interrupted:
            baseline = train_baseline(run, key, self.watcher, planned.job.threads)
        else:
            baseline = publish(diary, key, run.checkpoint_every)
        return run_entry(run, diary, baseline)

    def _replayed(self) -> dict[str, Any]:
        planned, run = self.planned, self.planned.run
        if not planned.job.finished:
            record(run, planned.data, self.watcher, planned.job.threads)
            planned.job.write()
        diary = complete(planned.job, (), planned.label, self.watcher)
        return replay_entry(run, diary, events.read(planned.job.recorded))


def folder_job(folder: Path, run: Experiment, data: str, threads: int | None) -> Job:
    """A run's job; one that has begun keeps its number of threads, which decides about its last bits."""
    begun = (folder / "job.json").exists()
    recording = recording_folder(run, data) if run.kind == "replay" else None
    return Job(
        folder, run, saves=True, recording=recording, threads=Job.read(folder).threads if begun else threads
    )
