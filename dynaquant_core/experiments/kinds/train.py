"""Kind ``train``: each run trains, saves meanwhile, and fails where it is told to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from dynaquant_core.experiments.baseline import (
    Baseline,
    find_baseline,
    publish,
    require_place,
    train_baseline,
)
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.crew import Task
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.kinds.base import Kind, Planned
from dynaquant_core.experiments.machine import lives_on
from dynaquant_core.experiments.recording import as_one_life
from dynaquant_core.experiments.restores import restores_of
from dynaquant_core.experiments.results import run_entry
from dynaquant_core.experiments.supervisor import Watcher, complete

__all__ = ["Train"]


@final
class Train(Kind):
    """A run without failures is the baseline of those with failures, which wait for its end."""

    def preflight(self, run: Experiment, data: str) -> None:  # noqa: ARG002
        """Refuses a current folder that cannot keep the uninterrupted run."""
        require_place()

    def job(self, folder: Path, run: Experiment, data: str, threads: int | None) -> Job:
        """Training beside a recorder."""
        return Job(folder, run, saves=True, threads=threads, content=data)

    def needs(self, planned: Planned, free: Mapping[str, str], watcher: Watcher) -> Task | str | None:
        """The same run undisturbed, where this one fails."""
        run, key = planned.run, planned.key
        if not planned.failures or find_baseline(key, run.checkpoint_every) is not None:
            return None
        return free.get(key) or Task(f"baseline {key}", lambda: _baseline(planned, watcher))

    def entry(self, planned: Planned, watcher: Watcher) -> dict[str, Any]:
        """Trains to the end, through all failures."""
        run, interval = planned.run, planned.run.checkpoint_every
        if not planned.job.diary.exists():
            planned.job.write()
        kills: Sequence[int] = planned.failures if run.restores == "kill" else ()
        diary = complete(planned.job, kills, planned.label, watcher)
        interrupted = any(restore["restored_step"] for restore in restores_of(diary))
        if interrupted:
            baseline = _baseline(planned, watcher)
        elif lives_on(diary):
            baseline = publish(as_one_life(diary), planned.key, interval)
        else:  # whose baseline it is, nobody knows
            baseline = Baseline.of(as_one_life(diary), interval)
        return run_entry(run, diary, baseline)


def _baseline(planned: Planned, watcher: Watcher) -> Baseline:
    return train_baseline(planned.run, planned.data, planned.machine, planned.label, watcher)
