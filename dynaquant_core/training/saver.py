"""One save: draft and search on the calling thread, encode and commit on the worker."""

from __future__ import annotations

import time

from torch import Tensor

from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.store import CheckpointStore
from dynaquant_core.training.begun import Begun
from dynaquant_core.training.capture import capture
from dynaquant_core.training.choice import Choice, Chooser
from dynaquant_core.training.gradients import GradientCollector, moment_averages
from dynaquant_core.training.names import parameter_names
from dynaquant_core.training.subject import Subject
from dynaquant_core.training.worker import Worker

__all__ = ["Saver"]


class Saver:
    """Takes a run's state into a store.

    Args:
        store: where to.
        subject: whose state.
        chooser: picks the configuration.
        collector: of gradients.
        worker: encodes and commits.
        begun: what this life of the run began from.
    """

    def __init__(
        self,
        store: CheckpointStore,
        subject: Subject,
        chooser: Chooser,
        collector: GradientCollector,
        worker: Worker[CheckpointInfo],
        begun: Begun,
    ) -> None:
        self._store = store
        self._subject = subject
        self._chooser = chooser
        self._collector = collector
        self._worker = worker
        self._begun = begun
        self._collected = 0.0  # seconds of the collector that earlier saves have reported

    def save(self, step: int, threshold: float | None = None) -> None:
        """Saves the live state as that after ``step`` steps; returns once it may change again.

        Args:
            step: completed optimizer steps.
            threshold: of this save alone; None: the chooser's.

        Raises:
            EvaluationError: evaluate failed; an exact checkpoint is committed when this is raised.
            SaveError: the save before failed in the background.
            DynaQuantError: this one failed on the calling thread.
        """
        started = time.perf_counter()
        self._worker.wait()  # back-pressure: never two saves in memory, and a delta needs its base
        saving = self._store.begin(
            step,
            capture(self._subject, step),
            gradients=self._gradients(),
            model=self._subject.model,
        )
        self._chooser.start = self._begun.start(saving.live, still=True)
        choice = self._chooser.choose(saving, threshold=threshold)
        sealing = time.perf_counter()
        sealed = saving.seal(choice.draft, choice.report)
        sealed.report["seconds"] = self._seconds(choice, started, sealing)
        error = choice.error
        del saving, choice  # the job must not keep what refers to the live state
        self._worker.submit(sealed.write)
        if error is not None:
            self._worker.wait()
            raise error

    def _gradients(self) -> dict[str, Tensor] | None:
        recorded = self._collector.averages()
        if not recorded:
            names = parameter_names(self._subject.models)
            recorded = moment_averages(self._subject.optimizers.values(), names)
        return recorded or None

    def _seconds(self, choice: Choice, started: float, sealing: float) -> dict[str, float]:
        """What this save cost so far; encode and commit are the store's to add."""
        now = time.perf_counter()
        collected, self._collected = self._collector.seconds - self._collected, self._collector.seconds
        return {
            "collector": collected,
            "held": now - started - choice.search_seconds,
            "search": choice.search_seconds,
            "draft": choice.draft_seconds + now - sealing,
        }
