"""A training process: ``python -m dynaquant_core.experiments.process FOLDER [--halt STEP]``.

It reads its job from the folder, goes on from the newest checkpoint, and writes events to the diary.  On its
standard output it says, one JSON object a line, where it is.  At the halt step it waits for its parent to
kill it: a failure in these experiments is a SIGKILL of a process in the middle of its work.

With ``restores: swap`` the process lives several lives instead.  At a failure it throws away trainer,
Checkpointer and all that they hold, makes them anew as a new process would, and restores; nothing but the
data set, which no life changes, is handed on.  Final weights are those of the killed run, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.data.dataset import Dataset
from dynaquant_core.experiments.failures import failure_steps
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.recorder import Recorder
from dynaquant_core.experiments.trainer import Trainer

__all__ = ["Life", "live_on", "main", "swaps_left"]

#: Seconds between two lines of progress, and points in a run's loss curve.
PROGRESS_SECONDS = 0.2
CURVE_POINTS = 400


class Life:
    """From start or resume to the end of the run, to the halt, or to a swap.

    Args:
        job: what to do.
        halt: step at which to wait for the kill, or None.
        data: of the life before in this process, or None.

    Attributes:
        data: for the life after.
    """

    def __init__(self, job: Job, halt: int | None, data: Dataset | None = None) -> None:
        self._job, self._halt = job, halt
        self._parent = os.getppid()
        self._trainer = Trainer(job.experiment, data)
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
        with self._recorder() as recorder:
            if recorder is not None:
                self._restored = recorder.restore()
            self._note("start", restored=self._restored)
            if self._restored:
                self._probe()
            while self._trainer.step < steps:
                self._step(recorder)
                if self._trainer.step in self._swaps:
                    self._note("swapped", step=self._trainer.step)
                    return False
        value = _mean(self._trainer.quality(self._trainer.data.heldout))
        count = sum(parameter.numel() for parameter in self._trainer.model.parameters())
        digest = self._trainer.digest()
        self._note("final", step=steps, value=value, weights_digest=digest, parameters=count)
        return True

    def _recorder(self) -> Recorder | nullcontext[None]:
        if not self._job.saves:
            return nullcontext()
        diary = events.read(self._job.diary)
        return Recorder(self._trainer, self._job.experiment, self._job.store, diary)

    def _step(self, recorder: Recorder | None) -> None:
        loss = self._trainer.advance()
        step = self._trainer.step
        due = step % self._job.experiment.checkpoint_every == 0
        self._report(loss, always=due or step in {self._halt, self._job.experiment.steps})
        if due:
            self._checkpoint(recorder)
        elif recorder is not None:
            recorder.after_step()
        self._maybe_probe()
        if step == self._halt:
            self._wait_for_kill()
        if os.getppid() != self._parent:
            sys.exit("the parent is gone; a later run goes on from the newest checkpoint")

    def _checkpoint(self, recorder: Recorder | None) -> None:
        trainer = self._trainer
        search, heldout = (
            trainer.quality(batches) for batches in (trainer.data.search, trainer.data.heldout)
        )
        reference = {
            "search": _mean(search),
            "heldout": _mean(heldout),
            "part": _mean(search[: trainer.data.part]),
        }
        self._note("reference", step=trainer.step, **reference)
        if recorder is not None:
            recorder.after_step()
            self._note("checkpoint", **recorder.measure(search, heldout))

    def _maybe_probe(self) -> None:
        """Rework is measured from a restore on, at most one interval long, every tenth of one."""
        interval = self._job.experiment.checkpoint_every
        since = self._trainer.step - self._restored
        if self._restored and since <= interval and since % max(1, interval // 10) == 0:
            self._probe()

    def _probe(self) -> None:
        data = self._trainer.data
        self._note(
            "probe", step=self._trainer.step, value=_mean(self._trainer.quality(data.search[: data.part]))
        )

    def _report(self, loss: float, *, always: bool) -> None:
        step = self._trainer.step
        steps, interval = self._job.experiment.steps, self._job.experiment.checkpoint_every
        always = always or step in self._swaps
        if always or step > steps - interval or step % max(1, steps // CURVE_POINTS) == 0:
            events.append(self._job.diary, "loss", step=step, loss=loss, seconds=self._trainer.seconds)
        if always or time.monotonic() - self._said > PROGRESS_SECONDS:
            self._said = time.monotonic()
            say({"event": "progress", "step": step, "loss": loss})

    def _note(self, event: str, **fields: Any) -> None:
        events.append(self._job.diary, event, **fields)
        say({"event": event, **fields})

    def _wait_for_kill(self) -> None:
        say({"event": "halt", "step": self._trainer.step})
        while os.getppid() == self._parent:
            time.sleep(0.02)


def swaps_left(job: Job) -> set[int]:
    """Steps at which this process is to throw its state away; none in a baseline, or where it is killed."""
    experiment = job.experiment
    if not job.saves or experiment.restores == "kill":
        return set()
    planned = failure_steps(experiment.failures, experiment.steps, experiment.checkpoint_every)
    done = {event["step"] for event in events.find(events.read(job.diary), "swapped")}
    return set(planned) - done


def live_on(job: Job, halt: int | None) -> None:
    """One life after the other, until the run is finished."""
    data, finished = None, False
    while not finished:
        life = Life(job, halt, data)
        finished, data = life.live(), life.data
        del life  # before the next one is made: two models would be in memory


def say(message: dict[str, Any]) -> None:
    """One line to the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a job; 0 good, 1 a problem that is said as an ``error`` line."""
    parser = argparse.ArgumentParser(prog="dynaquant_core.experiments.process", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--halt", type=int, default=None)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        live_on(Job.read(options.folder), options.halt)
    except DynaQuantError as error:
        say({"event": "error", "message": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
