"""Saves the states of a recording one after the other, as if they were being trained just now."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from torch import Tensor

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.life import measured, note, note_start, say
from dynaquant_core.experiments.recorder import Recorder
from dynaquant_core.experiments.recording import Recording, checkpoint_steps
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.training.names import parameter_names
from dynaquant_core.training.restore import put_back
from dynaquant_core.training.subject import Subject

__all__ = ["Replay"]


class Replay:
    """A real `Checkpointer` that is given each recorded state in turn.

    At a checkpoint it finds the run's exact model, optimizer, schedule and random streams, and the averages
    of the gradients that led there; what it writes is what it would have written while the run trained.
    Nothing of a replay that was cut short is used: going on would be a restore, which a run that was never
    interrupted does not have.

    Args:
        job: names the recording.

    Raises:
        ExperimentError: the job names none.
    """

    def __init__(self, job: Job) -> None:
        if job.recording is None:
            raise ExperimentError(f"{job.folder}: the job names no recording to replay.")
        self._job, self._experiment = job, job.experiment
        self._recording = Recording(job.recording, checkpoint_steps(job.experiment))
        self._trainer = Trainer(job.experiment)

    def run(self) -> None:
        """Saves and measures every checkpoint, and writes the final event."""
        trainer = self._trainer
        shutil.rmtree(self._job.store, ignore_errors=True)
        self._job.diary.unlink(missing_ok=True)
        put_back(Subject(trainer.model), self._recording.load(0)["state"])
        note_start(self._job)
        with Recorder(trainer, self._experiment, self._job.store, []) as recorder:
            for step in self._recording.steps:
                if self._experiment.as_restored:
                    recorder.restore()
                self._checkpoint(step, recorder)
        shutil.copyfile(self._recording.folder / "events.jsonl", self._job.recorded)
        count = sum(parameter.numel() for parameter in trainer.model.parameters())
        last = self._recording.steps[-1]
        note(self._job, "final", step=last, value=None, weights_digest=None, parameters=count)

    def _checkpoint(self, step: int, recorder: Recorder) -> None:
        trainer, tree = self._trainer, self._recording.load(step)
        say({"event": "progress", "step": step})
        for _ in range(self._experiment.checkpoint_every - 1):
            recorder.after_step()  # steps that were trained when this was recorded
        self._show_gradients(tree["gradients"])
        put_back(Subject(trainer.model, trainer.optimizer, trainer.scheduler), tree["state"])
        trainer.step = step
        search, heldout = (
            trainer.quality(batches) for batches in (trainer.data.search, trainer.data.heldout)
        )
        reference = {"search": measured(search, step), "heldout": measured(heldout, step)}
        note(self._job, "reference", step=step, **reference)
        recorder.after_step()
        entry = recorder.measure(search, heldout)
        if entry["seconds"]["collector"]:  # 0: the method needs no averages but those that Adam keeps itself
            entry["seconds"] = {**entry["seconds"], "collector": tree["collector"]}
        note(self._job, recorder.event, **entry)

    def _show_gradients(self, averages: Mapping[str, Tensor]) -> None:
        """Lets the Checkpointer's window see one step, whose gradients are the recorded averages.

        The first gradient of a window is its average, so it sees exactly what was recorded.  What the step
        does to the weights does not matter: the recorded state is put back after it.
        """
        trainer = self._trainer
        for parameter, names in parameter_names({"": trainer.model}).items():
            average = averages.get(names[0])
            parameter.grad = None if average is None else average.to(parameter)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
