"""Kind ``rework``: one run fails again and again, and its way back is counted (arXiv 2009.13003)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.crew import Task
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.kinds.base import Kind, Planned
from dynaquant_core.experiments.rework.entry import rework_entry
from dynaquant_core.experiments.rework.point import point_of
from dynaquant_core.experiments.supervisor import Watcher, complete

__all__ = ["Reworked"]


@final
class Reworked(Kind):
    """Everything happens in the run's own process; it waits for nothing."""

    def preflight(self, run: Experiment, data: str) -> None:  # noqa: ARG002
        """Refuses a method that has no point of this size."""
        if run.rework is not None:
            point_of(run)

    def job(self, folder: Path, run: Experiment, data: str, threads: int | None) -> Job:
        """Training, failing and counting."""
        return Job(folder, run, saves=True, threads=threads, content=data)

    def needs(self, planned: Planned, free: Mapping[str, str], watcher: Watcher) -> Task | str | None:  # noqa: ARG002
        """Nothing."""
        return None

    def entry(self, planned: Planned, watcher: Watcher) -> dict[str, Any]:
        """Brings the run to its end, from wherever it was."""
        if not planned.job.diary.exists():
            planned.job.write()
        return rework_entry(planned.run, complete(planned.job, (), planned.label, watcher))
