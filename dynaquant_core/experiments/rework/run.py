"""The run of a rework experiment: it trains, saves, fails, is restored, and trains until its loss is back.

One training serves all failures.  Its checkpoints make up one chain; a failure is restored from its own
point of it: parameters as a reader has them there, and everything else (the optimizer, the schedule,
buffers) as it was, since it is the method that is measured.  Failures and batches depend on the seed and
the repeat alone, so that every method meets the same ones.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.rework import ReworkSection
from dynaquant_core.experiments.data.dataset import drawn
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.life import mean, note, note_start, say
from dynaquant_core.experiments.rework.buckets import Buckets
from dynaquant_core.experiments.rework.chain import Chain, Link
from dynaquant_core.experiments.rework.point import point_of
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.methods.registry import resolve_method

__all__ = ["Rework", "count_rework", "failed_at", "work"]


@dataclass(frozen=True, slots=True)
class Restored:
    """What a failure goes back to.

    Args:
        step: of the checkpoint.
        parameters: as a reader has them.
        rest: everything else, as it was.
    """

    step: int
    parameters: Mapping[str, Tensor]
    rest: Mapping[str, Any]


def work(job: Job) -> None:
    """Does what a job of this kind asks for, to its end."""
    if job.experiment.buckets is not None:
        Buckets(job).run()
    else:
        Rework(job).run()


def failed_at(experiment: Experiment, section: ReworkSection) -> list[int]:
    """The iteration after which each repeat fails, drawn evenly: the same for every method.

    Args:
        experiment: one run.
        section: its own.
    """
    first, last = section.between or [1, experiment.steps]
    return [
        int(drawn("failure", experiment.seed, repeat).integers(first, last + 1))
        for repeat in range(section.repeats)
    ]


def count_rework(trainer: Trainer, target: float, most: int) -> tuple[int, bool]:
    """Trains until the loss on the search set is no higher than ``target``; how many iterations that took.

    Args:
        trainer: just restored.
        target: the loss at the failure.
        most: iterations before it is given up.

    Returns:
        The iterations, and whether the loss came back; 0 where it is there at once.  A training that diverges
        has not come back, and counts as given up.
    """
    for count in range(most + 1):
        if mean(trainer.quality(trainer.data.search)) <= target:
            return count, True
        if count < most:
            loss = trainer.backward()
            trainer.update()
            if not math.isfinite(loss):
                break
    return most, False


@final
class Rework:
    """One method at one point under all failures; writes events ``saved``, ``repeat`` and ``final``.

    A repeat that the diary holds already, of this very training, is not repeated.

    Args:
        job: of a run with a section ``rework``.

    Raises:
        ExperimentError: it has none.
    """

    def __init__(self, job: Job) -> None:
        section = job.experiment.rework
        if section is None:
            raise ExperimentError(f"{job.folder}: the job has no section rework.")
        self._job, self._experiment, self._section = job, job.experiment, section
        self._failures = failed_at(job.experiment, section)
        self._trainer = Trainer(job.experiment)
        self._restored: dict[int, Restored] = {}
        self._losses: dict[int, float] = {}

    def run(self) -> None:
        """Trains once, then fails as often as asked for."""
        note_start(self._job)
        seconds, digest = self._train(), self._trainer.digest()
        known = {
            event["repeat"]
            for event in events.find(events.read(self._job.diary), "repeat")
            if event["digest"] == digest
        }
        for repeat, failure in enumerate(self._failures):
            if repeat not in known:
                self._fail(repeat, failure, digest)
        count = sum(parameter.numel() for parameter in self._trainer.model.parameters())
        facts = {"weights_digest": digest, "parameters": count, "seconds": seconds}
        note(self._job, "final", step=self._experiment.steps, value=None, **facts)

    def _train(self) -> float:
        """The training that nothing disturbs, and the chain beside it; returns its seconds."""
        trainer, every = self._trainer, self._experiment.checkpoint_every
        method, point = resolve_method(self._experiment.method), point_of(self._experiment)
        chain = Chain(method, point, flat=self._section.flat)
        needed = {failure // every * every for failure in self._failures}
        while True:
            step = trainer.step
            if step % every == 0:
                link = chain.save(step, dict(trainer.model.named_parameters()))
                self._note(step, link)
                if step in needed:
                    self._restored[step] = Restored(step, link.restored, _rest(trainer))
            if step in self._failures:
                self._losses[step] = mean(trainer.quality(trainer.data.search))
            if step == self._experiment.steps:
                return trainer.seconds
            loss = trainer.advance()
            events.append(self._job.diary, "loss", step=step + 1, loss=loss, seconds=trainer.seconds)
            say({"event": "progress", "step": step + 1, "loss": loss})

    def _note(self, step: int, link: Link) -> None:
        fields = ("raw_bytes", "stored_bytes", "weight_bytes", "save_seconds", "read_seconds")
        told = {name: getattr(link, name) for name in fields}
        events.append(self._job.diary, "saved", step=step, **told)

    def _fail(self, repeat: int, failure: int, digest: str) -> None:
        point = self._restored[failure - failure % self._experiment.checkpoint_every]
        trainer = self._trainer
        _put_back(trainer, point)
        fresh = int(drawn("order", self._experiment.seed, repeat).integers(1 << 62))
        trainer.order = fresh if self._section.order == "fresh" else self._experiment.seed
        torch.manual_seed(trainer.order)
        started = time.perf_counter()
        count, back = count_rework(trainer, self._losses[failure], self._section.most)
        seconds = time.perf_counter() - started
        told = {"failed": failure, "restored": point.step, "iterations": count, "back": back}
        events.append(self._job.diary, "repeat", repeat=repeat, digest=digest, **told, seconds=seconds)
        say({"event": "progress", "step": self._experiment.steps, "repeat": repeat})


def _rest(trainer: Trainer) -> dict[str, Any]:
    """Everything of a training but its parameters, copied."""
    state = {
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.scheduler.state_dict(),
        "buffers": dict(trainer.model.named_buffers()),
    }
    return copy.deepcopy(state)


def _put_back(trainer: Trainer, point: Restored) -> None:
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(point.parameters[name])
        for name, buffer in trainer.model.named_buffers():
            buffer.copy_(point.rest["buffers"][name])
    trainer.optimizer.load_state_dict(copy.deepcopy(point.rest["optimizer"]))
    trainer.scheduler.load_state_dict(copy.deepcopy(point.rest["scheduler"]))
    trainer.step = point.step
