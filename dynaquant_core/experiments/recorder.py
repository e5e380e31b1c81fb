"""Saves a training run and measures every checkpoint as its reader would get it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, final

from torch import Tensor, nn

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.events import Event, checkpoints
from dynaquant_core.experiments.measures import MovementWatch, by_direction, standard_error
from dynaquant_core.experiments.narrow import method_of
from dynaquant_core.experiments.optimizers import keeps_moments
from dynaquant_core.experiments.recording import WINDOW
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.methods.base import TakesVectors
from dynaquant_core.methods.registry import resolve_method
from dynaquant_core.search.quality import Quality, degradation
from dynaquant_core.state.roles import matches
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.store import CheckpointStore
from dynaquant_core.training.checkpointer import Checkpointer

__all__ = ["Recorder"]


@final
class Recorder:
    """A `Checkpointer` over a trainer, and the measurements that need the true weights beside the decoded.

    Args:
        trainer: the run.
        experiment: its settings.
        folder: of the checkpoint store.
        diary: events of earlier lives of this run; they decide what is restored.
    """

    event: Final = "checkpoint"

    def __init__(
        self, trainer: Trainer, experiment: Experiment, folder: Path, diary: Sequence[Event]
    ) -> None:
        self._trainer, self._experiment, self._folder = trainer, experiment, folder
        self._logged = [event["step"] for event in checkpoints(diary)]
        self._checkpointer = Checkpointer(
            folder,
            trainer.model,
            trainer.optimizer,
            scheduler=trainer.scheduler,
            every=experiment.checkpoint_every,
            evaluate=None if experiment.search is not True else lambda: trainer.quality(trainer.data.search),
            threshold=experiment.threshold,
            mode=experiment.evaluate.mode,
            method=method_of(experiment),  # the one that the results name
            moments=experiment.moments,
            exact=tuple(experiment.exact),
            window=WINDOW,
            max_chain=experiment.max_chain,
        )
        self._reader = trainer.reader()
        self._names = quantised_names(trainer.model, experiment)
        self._watch = self._watching(restored=False)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._checkpointer.__exit__(kind, error, trace)

    def restore(self) -> int:
        """Brings the trainer to the newest checkpoint that was also measured; returns its step (0: none).

        A process that died between a commit and its measurement left a checkpoint without an entry: the run
        goes back to the one before and takes that step again.
        """
        newest = CheckpointStore(self._folder).newest() if self._folder.exists() else None
        if newest is not None and not self._logged:
            shutil.rmtree(self._folder)
            newest = None
        if newest is None:
            return 0
        step = self._checkpointer.restore(None if newest.step in self._logged else self._logged[-1])
        self._trainer.step = step
        self._watch = self._watching(restored=True)
        return step

    def after_step(self) -> None:
        """To be called after each optimizer step: saves when due."""
        self._checkpointer.step()

    def measure(self, search: list[float], heldout: list[float]) -> dict[str, Any]:
        """The entry of results.json for the checkpoint of this step, from what a reader of its file gets.

        Args:
            search: quality of the true weights on each search batch.
            heldout: the same on each held-out batch.
        """
        info = self._checkpointer.wait()
        if info is None or info.step != self._trainer.step:
            raise ExperimentError(
                f"no checkpoint was written at step {self._trainer.step}; an experiment needs saving: unset "
                f"DYNAQUANT_DISABLE."
            )
        self._reader.load_state_dict(CheckpointStore(self._folder).load(info.step)["model"])
        true, decoded = self._weights(self._trainer.model), self._weights(self._reader)
        entry = self._quality_entry(Quality.of(search), Quality.of(heldout))
        entry |= {
            "movement_lost": self._watch.lost(true, decoded),
            "unchanged": self._watch.unchanged(decoded),
        }
        self._watch.advance(decoded)
        self._logged.append(info.step)
        return _info_entry(info) | entry

    def _quality_entry(self, search: Quality, heldout: Quality) -> dict[str, Any]:
        trainer, mode = self._trainer, self._experiment.evaluate.mode
        got_search = Quality.of(trainer.quality(trainer.data.search, self._reader))
        got_heldout = Quality.of(trainer.quality(trainer.data.heldout, self._reader))
        on_search = degradation(search, got_search, mode)
        on_heldout = degradation(heldout, got_heldout, mode)
        return {
            "quality": {
                "reference": search.mean,
                "search": _finite(got_search.mean),
                "heldout": _finite(got_heldout.mean),
                "heldout_reference": heldout.mean,
            },
            "degradation": {
                "search": _finite(on_search.mean),
                "heldout": _finite(on_heldout.mean),
                "heldout_se": standard_error(on_heldout, heldout),
            },
            "met": on_search.mean <= self._experiment.threshold,
        }

    def _watching(self, *, restored: bool) -> MovementWatch:
        model = self._trainer.model
        return MovementWatch(self._weights(model), restored=restored, directions=by_direction(model))

    def _weights(self, model: nn.Module) -> dict[str, Tensor]:
        parameters = dict(model.named_parameters())
        return {name: parameters[name] for name in self._names}


def quantised_names(model: nn.Module, experiment: Experiment) -> list[str]:
    """Parameters that the experiment's method takes (tied ones once); the rest is stored exactly."""
    method, trained = resolve_method(experiment.method), keeps_moments(experiment.optimizer)

    def taken(parameter: nn.Parameter) -> bool:
        if parameter.dim() == 1 and trained and isinstance(method, TakesVectors):  # as in `store.parts`
            return method.accepts_vector(parameter)
        return method.accepts(parameter)

    return [
        name
        for name, parameter in model.named_parameters()
        if taken(parameter) and not matches(f"model.{name}", experiment.exact)
    ]


def _info_entry(info: CheckpointInfo) -> dict[str, Any]:
    config = info.config
    return {
        "step": info.step,
        "kind": info.kind,
        "config": config.as_dict() if hasattr(config, "as_dict") else config,
        "raw_bytes": info.raw_bytes,
        "stored_bytes": info.stored_bytes,
        "parts": info.parts,
        "evaluations": info.evaluations,
        "exhaustive": bool(info.report.get("exhaustive", False)),
        "seconds": info.seconds,
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity: a decoded model whose quality is not finite is recorded as null."""
    return value if math.isfinite(value) else None
