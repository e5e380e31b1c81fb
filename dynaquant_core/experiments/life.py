"""One life of a training process: from start or resume to the end of the run, to the halt, or to a swap."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.data.dataset import Dataset
from dynaquant_core.experiments.failures import failure_steps
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.machine import machine_here
from dynaquant_core.experiments.pretraining import put_weights, read_weights
from dynaquant_core.experiments.recorder import Recorder
from dynaquant_core.experiments.tape import Tape
from dynaquant_core.experiments.trainer import Trainer

__all__ = ["Life", "in_curve", "mean", "measured", "note", "note_start", "say", "swaps_left"]

#: Seconds between two lines of progress, and points in a run's loss curve.
PROGRESS_SECONDS = 0.2
CURVE_POINTS = 400


class Life:
    """Trains, beside a recorder that saves, a tape that keeps exact states, or nothing (a baseline).

    Args:
        job: what to do.
        halt: step at which to wait for the kill, or None.
        data: of the life before in this process, or None.
        decoded: name -> tensor, put over the weights that the job starts from; what of them was compressed.

    Attributes:
        data: for the life after.
    """

    def __init__(
        self,
        job: Job,
        halt: int | None,
        data: Dataset | None = None,
        decoded: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._job, self._halt = job, halt
        self._trainer = Trainer(job.experiment, data)
        if job.start is not None:
            put_weights(self._trainer.model, read_weights(job.start), str(job.start))
        if decoded:
            put_weights(self._trainer.model, decoded, str(job.store), partial=True)
        self.data = self._trainer.data
        self._swaps = swaps_left(job)
        self._restored = 0
        self._said = 0.0

    def live(self) -> bool:
        """Trains to the last step and writes the final event, or to a swap (never returns from a halt).

        Returns:
            Whether the run is finished; if not, another life has to go on.
        """
        steps = self._job.experiment.steps
        with self._companion() as companion:
            if companion is not None:
                self._restored = companion.restore()
            note_start(self._job, self._restored)
            if self._fails():  # after a checkpoint, whose life ended before it could
                return False
            if self._restored and self._job.saves:
                self._probe()
            while self._trainer.step < steps:
                self._step(companion)
                if self._fails():
                    return False
        value = measured(self._trainer.quality(self._trainer.data.heldout), steps)
        count = sum(parameter.numel() for parameter in self._trainer.model.parameters())
        digest = self._trainer.digest()
        note(self._job, "final", step=steps, value=value, weights_digest=digest, parameters=count)
        return True

    def _companion(self) -> AbstractContextManager[Recorder | Tape | None]:
        if self._job.records:
            tape = Tape(self._trainer, self._job.experiment, self._job.folder)
            say({"event": "recording", **tape.require_space()})
            return tape
        if not self._job.saves:
            return nullcontext()
        diary = events.read(self._job.diary)
        return Recorder(self._trainer, self._job.experiment, self._job.store, diary)

    def _step(self, companion: Recorder | Tape | None) -> None:
        loss = self._trainer.advance()
        step = self._trainer.step
        due = step % self._job.experiment.checkpoint_every == 0
        self._report(loss, always=due or step in {self._halt, self._job.experiment.steps})
        if due:
            self._checkpoint(companion)
        elif companion is not None:
            companion.after_step()
        self._maybe_probe()

    def _fails(self) -> bool:
        """Whether the state is to be thrown away after this step; for a kill that is planned it waits."""
        step = self._trainer.step
        if step == self._halt:
            self._wait_for_kill()
        if step in self._swaps:
            note(self._job, "swapped", step=step)
        return step in self._swaps

    def _checkpoint(self, companion: Recorder | Tape | None) -> None:
        trainer = self._trainer
        search, heldout = (
            trainer.quality(batches) for batches in (trainer.data.search, trainer.data.heldout)
        )
        reference = {
            "search": measured(search, trainer.step),
            "heldout": measured(heldout, trainer.step),
            "part": measured(self._part(search), trainer.step),
        }
        note(self._job, "reference", step=trainer.step, **reference)
        if companion is not None:
            companion.after_step()
            note(self._job, companion.event, **companion.measure(search, heldout))

    def _maybe_probe(self) -> None:
        """Rework is measured from a restore on, at most one interval long, every tenth of one."""
        interval = self._job.experiment.checkpoint_every
        since = self._trainer.step - self._restored
        if self._restored and self._job.saves and since <= interval and since % max(1, interval // 10) == 0:
            self._probe()

    def _probe(self) -> None:
        note(self._job, "probe", step=self._trainer.step, value=measured(self._part(), self._trainer.step))

    def _part(self, search: Sequence[float] = ()) -> Sequence[float]:
        """The metric on the small part, from ``search``, that of each search batch, where it is at hand."""
        data = self._trainer.data
        if len(search) == len(data.search):
            return search[: data.part]
        return self._trainer.quality(data.search[: data.part])  # a correlation is one value of a whole set

    def _report(self, loss: float, *, always: bool) -> None:
        step = self._trainer.step
        steps, interval = self._job.experiment.steps, self._job.experiment.checkpoint_every
        always = always or step in self._swaps
        if always or in_curve(step, steps, interval):
            events.append(self._job.diary, "loss", step=step, loss=loss, seconds=self._trainer.seconds)
        if always or time.monotonic() - self._said > PROGRESS_SECONDS:
            self._said = time.monotonic()
            say({"event": "progress", "step": step, "loss": loss})

    def _wait_for_kill(self) -> None:
        say({"event": "halt", "step": self._trainer.step})
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(0.02)


def in_curve(step: int, steps: int, interval: int) -> bool:
    """Whether a step's loss is kept: each one of the last interval, of the others so many.

    Example:
        >>> [in_curve(step, 2000, 100) for step in (500, 501, 1901)]
        [True, False, True]
    """
    return step > steps - interval or step % max(1, steps // CURVE_POINTS) == 0


def swaps_left(job: Job) -> set[int]:
    """Steps at which this process is to throw its state away; none in a baseline, or where it is killed."""
    experiment = job.experiment
    if not job.saves or experiment.restores == "kill":
        return set()
    planned = failure_steps(experiment.failures, experiment.steps, experiment.checkpoint_every)
    done = {event["step"] for event in events.find(events.read(job.diary), "swapped")}
    return set(planned) - done


def note(job: Job, event: str, **fields: Any) -> None:
    """One event, to the diary and to the parent."""
    events.append(job.diary, event, **fields)
    say({"event": event, **fields})


def note_start(job: Job, restored: int = 0) -> None:
    """That a life begins, from a step, and on which machine."""
    note(job, "start", restored=restored, machine=machine_here(job.threads, job.experiment.model))


def say(message: dict[str, Any]) -> None:
    """One line to the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def measured(values: Sequence[float], step: int) -> float:
    """What the model in training was measured at: the mean over batches, a number that a diary can hold.

    Raises:
        ExperimentError: it is not finite.
    """
    value = mean(values)
    if not math.isfinite(value):
        raise ExperimentError(
            f"the evaluation at step {step} gives {value} for the uncompressed model; lower optimizer.lr or "
            f"set optimizer.clip if the training diverged, or choose another evaluate.metric or larger sets."
        )
    return value


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean of at least one value."""
    return sum(values) / len(values)
