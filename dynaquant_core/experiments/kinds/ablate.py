"""Kind ``ablate``: one thing varies; each run is a training or a replay, or measures a recording."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from dynaquant_core.errors import ConfigError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.ablation.fewest_bins import BINS_AXIS
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.crew import Task
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.kinds.base import Kind, Planned
from dynaquant_core.experiments.kinds.replay import Replayed
from dynaquant_core.experiments.kinds.train import Train
from dynaquant_core.experiments.narrow import method_of
from dynaquant_core.experiments.supervisor import Watcher

__all__ = ["Ablate"]

#: What ``of`` stands for.
KINDS: Mapping[str, Kind] = {"train": Train(), "replay": Replayed()}

#: Methods that each measure is about; any, where it is not named.
METHODS: Mapping[str, tuple[str, ...]] = {"coders": ("dynaquant",), "bins": tuple(BINS_AXIS)}


@final
class Ablate(Kind):
    """Everything but the measuring and the axis is that of the kind which each run is."""

    def preflight(self, run: Experiment, data: str) -> None:
        """Refuses a method that cannot be measured so, and what the kind of the runs refuses."""
        method = method_of(run).name
        able = METHODS.get(run.measure, (method,))
        if method not in able:
            raise ConfigError(
                f"measure: {run.measure} knows the methods {', '.join(able)}, not {method!r}; name one of "
                f"them."
            )
        KINDS[run.of].preflight(run, data)

    def job(self, folder: Path, run: Experiment, data: str, threads: int | None) -> Job:
        """As of the kind of the runs."""
        return KINDS[run.of].job(folder, run, data, threads)

    def needs(self, planned: Planned, free: Mapping[str, str], watcher: Watcher) -> Task | str | None:
        """As of the kind of the runs."""
        return KINDS[planned.run.of].needs(planned, free, watcher)

    def entry(self, planned: Planned, watcher: Watcher) -> dict[str, Any]:
        """The entry of such a run, what varied in it, and what was measured."""
        run = planned.run
        entry = KINDS[run.of].entry(planned, watcher)
        if run.measure != "saves":
            found = events.find(events.read(planned.job.diary), run.measure)
            entry[run.measure] = [{key: event[key] for key in event if key != "event"} for event in found]
        axis = None if run.axis is None else {"key": run.axis.key, "value": run.axis.values[0]}
        return {**entry, "axis": axis, "of": run.of, "measure": run.measure}
