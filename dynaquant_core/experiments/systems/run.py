"""The run of a system: it trains to the end, or until its loss is no number, and is measured on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import final

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.data.dataset import Batch
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.life import in_curve, mean, measured, note, note_start, say
from dynaquant_core.experiments.pretraining import put_weights, read_weights
from dynaquant_core.experiments.systems.registry import make_system
from dynaquant_core.experiments.trainer import Trainer, diverged

__all__ = ["SystemRun"]


@final
class SystemRun:
    """Trains under a system; writes events ``loss``, ``reference`` and ``final``.

    A run that was cut short begins anew.  One that diverges ends there, which is a result: narrow formats do.
    A baseline that diverges is an error, as any is: nothing could be compared with it.

    Args:
        job: of a run with a section ``system``.

    Raises:
        ConfigError: the system does not fit the model.
        ExperimentError: data or pre-trained weights are missing, or a baseline diverged.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._trainer = job, Trainer(job.experiment)
        if job.start is not None:
            put_weights(self._trainer.model, read_weights(job.start), str(job.start))
        self._system = make_system(job.experiment, self._trainer)

    def run(self) -> None:
        """To the last step, or to the first whose loss is not finite."""
        experiment, trainer = self._job.experiment, self._trainer
        self._job.diary.unlink(missing_ok=True)
        note_start(self._job)
        goes = True
        while goes and trainer.step < experiment.steps:
            goes = self._step()
            if goes and trainer.step % experiment.checkpoint_every == 0:
                search, heldout = map(self._quality, (trainer.data.search, trainer.data.heldout))
                note(self._job, "reference", step=trainer.step, search=search, heldout=heldout, part=None)
        note(
            self._job,
            "final",
            step=trainer.step,
            value=self._quality(trainer.data.heldout) if goes else None,
            weights_digest=trainer.digest(),
            parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
            seconds=trainer.seconds,
            facts=self._system.facts(),
        )

    def _step(self) -> bool:
        """One step; whether its loss is a number."""
        started = time.perf_counter()
        loss = self._system.advance()
        self._trainer.seconds += time.perf_counter() - started
        if not math.isfinite(loss):
            if not self._job.saves:
                raise ExperimentError(diverged(loss, self._trainer.step))
            return False
        step, experiment = self._trainer.step, self._job.experiment
        if in_curve(step, experiment.steps, experiment.checkpoint_every):
            seconds = self._trainer.seconds
            events.append(self._job.diary, "loss", step=step, loss=loss, seconds=seconds)
        say({"event": "progress", "step": step, "loss": loss})
        return True

    def _quality(self, batches: Sequence[Batch]) -> float | None:
        """The mean over batches; None where it is no number."""
        values = self._trainer.quality(batches)
        if not self._job.saves:
            return measured(values, self._trainer.step)
        value = mean(values)
        return value if math.isfinite(value) else None
