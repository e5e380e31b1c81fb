"""The parts of a grid, and what each of them has to wait for, so that nothing is trained twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.language import HFModel
from dynaquant_core.experiments.crew import Task
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.kinds.base import Planned
from dynaquant_core.experiments.kinds.registry import kind_of
from dynaquant_core.experiments.machine import machines_of
from dynaquant_core.experiments.pretraining import content
from dynaquant_core.experiments.supervisor import Watcher

__all__ = ["folder_job", "grid_tasks"]


def grid_tasks(plan: Mapping[str, Planned], watcher: Watcher) -> list[Task]:
    """A task for each run, named as in ``plan``, and one for each recording or baseline that is not there.

    A run without failures is the baseline of those with failures, which wait for its end: where it fails,
    they train a baseline.  Run tasks give their entry of results.json.

    Args:
        plan: name -> run.
        watcher: takes progress, and knows the processes.
    """
    before: dict[str, Task] = {}
    runs: list[Task] = []
    free = {run.key: name for name, run in reversed(list(plan.items())) if not run.failures}
    for name, planned in sorted(plan.items(), key=lambda item: bool(item[1].failures)):
        needed = kind_of(planned.run).needs(planned, free, watcher)
        work = _Run(planned, watcher)
        if isinstance(needed, Task):
            before.setdefault(needed.name, needed)
            runs.append(Task(name, work, needs=(needed.name,)))
        else:
            runs.append(Task(name, work, after=() if needed is None else (needed,)))
    return [*before.values(), *runs]


@dataclass(frozen=True, slots=True)
class _Run:
    """Brings one run to its end; called, it gives its entry."""

    planned: Planned
    watcher: Watcher

    def __call__(self) -> dict[str, Any]:
        entry = kind_of(self.planned.run).entry(self.planned, self.watcher)
        told = {"folder": self.planned.job.folder.name}
        return entry | told | {"machines": machines_of(events.read(self.planned.job.diary))}


def folder_job(folder: Path, run: Experiment, data: str, threads: int) -> Job:
    """A run's job; one that has begun keeps its number of threads, which decides about its last bits.

    A finished one keeps its content too, under which its baseline is: after an update of torch a pre-training
    would be recorded elsewhere.

    Raises:
        ExperimentError: it began on other data, so that its results would stand beside those of these.
    """
    if not (folder / "job.json").exists():
        return kind_of(run).job(folder, run, data, threads)
    begun = Job.read(folder)
    job = kind_of(run).job(folder, run, data, begun.threads or threads)
    if begun.content in {None, data} or not begun.diary.exists():
        return job
    if begun.content != content(run, begun.start):
        raise ExperimentError(
            f"output: {folder} was run on other data than {_sources(run)} holds now; give another folder "
            f"with output=PATH, or remove it, and it is run anew."
        )
    return replace(job, content=begun.content) if begun.finished else job


def _sources(run: Experiment) -> str:
    """What a run reads, by name."""
    names = [run.data.source]
    if isinstance(run.model, HFModel):
        names.append(f"{run.model.path}/config.json")
    if run.pretrained is not None and run.pretrained.source is not None:
        names.append(run.pretrained.source)
    if run.pretrained is not None and run.pretrained.data is not None:
        names.append(run.pretrained.data.source)
    return " or ".join(dict.fromkeys(names))
