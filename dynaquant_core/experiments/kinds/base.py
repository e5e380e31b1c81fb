"""The protocol of a kind of experiment: what a run waits for, which job it is, what its results say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynaquant_core.experiments import events
from dynaquant_core.experiments.baseline import baseline_key
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.crew import Task
from dynaquant_core.experiments.failures import failure_steps
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.machine import Machine, lives_on, machine_here
from dynaquant_core.experiments.supervisor import Watcher

__all__ = ["Kind", "Planned"]


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
    def machine(self) -> Machine:
        """That it began on; this one, where it has not begun or its diary does not say."""
        begun = next(iter(lives_on(events.read(self.job.diary))), None)
        return begun or machine_here(self.job.threads, self.run.model)

    @property
    def key(self) -> str:
        """Name of its baseline."""
        return baseline_key(self.run, self.data, self.machine)

    @property
    def failures(self) -> list[int]:
        """Steps at which it fails."""
        return failure_steps(self.run.failures, self.run.steps, self.run.checkpoint_every)


class Kind(ABC):
    """One kind of experiment.  What its YAML file may say is checked before, in `config.experiment`."""

    @abstractmethod
    def preflight(self, run: Experiment, data: str) -> None:
        """Refuses whatever can be refused before hours of work.

        Args:
            run: one run.
            data: fingerprint of its data.

        Raises:
            DynaQuantError: says what is wrong with it.
        """

    @abstractmethod
    def job(self, folder: Path, run: Experiment, data: str, threads: int | None) -> Job:
        """What the run's process will be asked to do; nothing is written."""

    @abstractmethod
    def needs(self, planned: Planned, free: Mapping[str, str], watcher: Watcher) -> Task | str | None:
        """What a run waits for: a task that it needs, the end of another run, by name, or nothing.

        Args:
            planned: the run.
            free: baseline -> name of the run, undisturbed itself, that will be that baseline.
            watcher: takes progress, and knows the processes.
        """

    @abstractmethod
    def entry(self, planned: Planned, watcher: Watcher) -> dict[str, Any]:
        """Brings a run to its end, and gives its entry of results.json."""
