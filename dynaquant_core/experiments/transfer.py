"""Compresses a pre-trained model once, and fine-tunes what a reader of that checkpoint gets."""

from __future__ import annotations

import shutil
from dataclasses import replace

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.life import Life, measured, note
from dynaquant_core.experiments.pretraining import (
    decoded_weights,
    pretraining,
    put_weights,
    read_weights,
    start_digest,
)
from dynaquant_core.experiments.recorder import Recorder
from dynaquant_core.experiments.trainer import Trainer

__all__ = ["Transfer"]


class Transfer:
    """A run of kind ``transfer``: one key checkpoint, then a training that begins with its decoded weights.

    What the compressed model has no place for (a head of the fine-tuning, a pooler) begins as in the
    baseline: as the source has it, or as the seed draws it.  There is no base, no optimizer state and no
    gradient: the model might have been downloaded.  A run that was cut short keeps its checkpoint and begins
    the fine-tuning anew.

    Args:
        job: names the pre-trained weights.

    Raises:
        ExperimentError: the job names none.
    """

    def __init__(self, job: Job) -> None:
        if job.start is None:
            raise ExperimentError(f"{job.folder}: the job names no weights to start from.")
        self._job, self._start = job, job.start

    def run(self) -> None:
        """Compresses unless that is done, then fine-tunes to the end."""
        if not events.find(events.read(self._job.diary), "checkpoint"):
            self._compress()
        decoded = decoded_weights(self._job.store, self._start)
        Life(replace(self._job, saves=False), None, decoded=decoded).live()

    def _compress(self) -> None:
        """The checkpoint is that of step 0, before any optimizer; its entry in the diary comes last."""
        run = pretraining(self._job.experiment).model_copy(update={"steps": 1, "checkpoint_every": 1})
        shutil.rmtree(self._job.store, ignore_errors=True)
        trainer = Trainer(run)
        put_weights(trainer.model, read_weights(self._start), str(self._start))
        search, heldout = (
            trainer.quality(batches) for batches in (trainer.data.search, trainer.data.heldout)
        )
        reference = {"search": measured(search, 0), "heldout": measured(heldout, 0)}
        begun = start_digest(self._job.experiment, self._start)
        note(self._job, "reference", step=0, **reference, part=None, begun_with=begun)
        with Recorder(trainer, run, self._job.store, []) as recorder:
            trainer.step = 1  # a Checkpointer counts from one
            recorder.after_step()
            note(self._job, recorder.event, **recorder.measure(search, heldout) | {"step": 0})
