"""``measure: bins``: at each recorded checkpoint, the fewest bins with which a method keeps the threshold.

Nothing is stored.  Each checkpoint is drafted on its own, without a base, as a store would draft a key; what
a reader would get is put into the model and measured on the search set.  Checkpoints do not depend on each
other, so a run that was cut short goes on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Set as AbstractSet
from typing import Any, final

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments import events
from dynaquant_core.experiments.ablation.fewest_bins import (
    BINS_AXIS,
    Points,
    fewest_bins,
    points_by_bins,
)
from dynaquant_core.experiments.job import Job
from dynaquant_core.experiments.life import note, note_start, say
from dynaquant_core.experiments.narrow import method_of
from dynaquant_core.experiments.recording import Recording, checkpoint_steps
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.methods.base import Draft, Space
from dynaquant_core.methods.dynaquant.draft import CodesDraft
from dynaquant_core.search.quality import Goal
from dynaquant_core.store.parts import Settings
from dynaquant_core.store.prepare import Prepared, prepare
from dynaquant_core.training.capture import capture
from dynaquant_core.training.evaluation import Evaluation
from dynaquant_core.training.restore import put_back
from dynaquant_core.training.subject import Subject
from dynaquant_core.training.trial import Trial

__all__ = ["BinnedReplay"]


@final
class BinnedReplay:
    """Searches every recorded checkpoint for the fewest bins, and notes an event ``bins`` for each.

    Args:
        job: names the recording; its method is one of `BINS_AXIS`.

    Raises:
        ExperimentError: the job names no recording.
    """

    def __init__(self, job: Job) -> None:
        if job.recording is None:
            raise ExperimentError(f"{job.folder}: the job names no recording to measure.")
        self._job, self._experiment = job, job.experiment
        self._recording = Recording(job.recording, checkpoint_steps(job.experiment))
        self._trainer = Trainer(job.experiment)
        self._method = method_of(job.experiment)

    def run(self) -> None:
        """Measures what is not measured yet, and writes the final event."""
        done = {event["step"] for event in events.find(events.read(self._job.diary), "bins")}
        note_start(self._job)
        for step in self._recording.steps:
            if step not in done:
                say({"event": "progress", "step": step})
                note(self._job, "bins", **self._measured(step))
        shutil.copyfile(self._recording.folder / "events.jsonl", self._job.recorded)
        count = sum(parameter.numel() for parameter in self._trainer.model.parameters())
        last = self._recording.steps[-1]
        note(self._job, "final", step=last, value=None, weights_digest=None, parameters=count)

    def _measured(self, step: int) -> dict[str, Any]:
        started, trainer = time.perf_counter(), self._trainer
        prepared = self._prepared(step)
        saving = prepared.saving(None, None)
        embeddings = {name for name, kind in prepared.hints.layer_types.items() if kind == "embedding"}
        evaluation = Evaluation(lambda: trainer.quality(trainer.data.search), trainer.model)
        losses: dict[str, float] = {}
        with Trial(saving.live, evaluation) as trial:
            goal = Goal(trial.reference(), self._experiment.threshold, self._experiment.evaluate.mode)

            def keeps(bins: int, point: Any) -> bool:
                draft = saving.draft(point)
                if most_centres(draft, embeddings) > bins:  # a fit that asked for more than it was given
                    return False
                found = goal.judge(trial.measure(draft.decoded))
                losses[repr(point)] = found.mean
                return goal.met(found)

            limit = self._experiment.time_limit
            result = fewest_bins(
                self._points(saving.space, embeddings=bool(embeddings)),
                keeps,
                lambda: time.perf_counter() - started < limit,
            )
        return {
            "step": step,
            "bins": result.bins,
            "mark": result.mark,
            "config": None if result.point is None else result.point.as_dict(),
            "degradation": losses.get(repr(result.point)),
            "evaluations": len(losses),
            "seconds": time.perf_counter() - started,
        }

    def _prepared(self, step: int) -> Prepared:
        """A save of the recorded state, whose live tensors are the model's."""
        trainer, tree = self._trainer, self._recording.load(step)
        subject = Subject(trainer.model, trainer.optimizer, trainer.scheduler)
        put_back(subject, tree["state"])
        trainer.step = step
        settings = Settings.of(self._method, self._experiment.moments, self._experiment.exact)
        state, model = capture(subject, step), trainer.model
        return prepare(settings, step, state, gradients=tree["gradients"], model=model)

    def _points(self, space: Space, *, embeddings: bool) -> Points:
        pruning = "prune" if "prune" in space.axes else None
        return points_by_bins(space, BINS_AXIS[self._method.name], pruning=pruning, embeddings=embeddings)


def most_centres(draft: Draft, embeddings: AbstractSet[str]) -> int:
    """Centres of a draft's largest codebook but for embeddings'; 0 where the method keeps to its bins."""
    if not isinstance(draft, CodesDraft):
        return 0
    sizes = (int(book.centres.size) for name, book in draft.books.items() if name not in embeddings)
    return max(sizes, default=0)
