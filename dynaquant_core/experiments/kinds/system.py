"""Kind ``system``: each run trains under a system that shrinks what training moves or holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from dynaquant_core.experiments.baseline import Baseline, find_baseline, require_place, train_baseline
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.systems import SmaqSystem, TwoBitSystem
from dynaquant_core.experiments.crew import Task
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.kinds.base import Kind, Planned
from dynaquant_core.experiments.pretraining import start_path
from dynaquant_core.experiments.supervisor import Watcher, complete
from dynaquant_core.experiments.systems.entry import system_entry

__all__ = ["Shrinking"]


@final
class Shrinking(Kind):
    """The baseline of a seed is the same training without the system; of two bits, of as many replicas."""

    def preflight(self, run: Experiment, data: str) -> None:  # noqa: ARG002
        """Refuses weights that are not there, and a format that does not exist."""
        require_place()
        _start(run)
        if isinstance(run.system, SmaqSystem):
            # Not above: every command imports this, and SmaQ reads what torch does not promise.
            from dynaquant_core.memory.smaq import make_format

            make_format(run.system.format)

    def job(self, folder: Path, run: Experiment, data: str, threads: int | None) -> Job:
        """Training under the system."""
        return Job(folder, run, saves=True, start=_start(run), threads=threads, content=data)

    def needs(self, planned: Planned, free: Mapping[str, str], watcher: Watcher) -> Task | str | None:  # noqa: ARG002
        """The training of this seed without it."""
        if find_baseline(planned.key, planned.run.checkpoint_every) is not None:
            return None
        return Task(f"baseline {planned.key}", lambda: _baseline(planned, watcher))

    def entry(self, planned: Planned, watcher: Watcher) -> dict[str, Any]:
        """Trains to the end."""
        if not planned.job.finished:  # its weights may lie elsewhere than when it began
            planned.job.write()
        diary = complete(planned.job, (), planned.label, watcher)
        return system_entry(planned.run, diary, _baseline(planned, watcher))


def _start(run: Experiment) -> Path | None:
    return None if run.pretrained is None else start_path(run)


def _baseline(planned: Planned, watcher: Watcher) -> Baseline:
    run, job = planned.run, planned.job
    if isinstance(run.system, TwoBitSystem):
        run = run.model_copy(update={"system": run.system.dense})
    return train_baseline(run, planned.data, planned.machine, planned.label, watcher, start=job.start)
