"""Writes the exact state of a training run at every checkpoint, and changes nothing of it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Final, final

from torch import nn

from dynaquant_core.errors import ExperimentError, StorageError
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.recording import WINDOW, checkpoint_steps, load_state, state_path
from dynaquant_core.experiments.trainer import Trainer
from dynaquant_core.files import save_file
from dynaquant_core.training.capture import capture, model_state
from dynaquant_core.training.gradients import GradientCollector
from dynaquant_core.training.names import parameter_names
from dynaquant_core.training.restore import put_back
from dynaquant_core.training.subject import Subject

__all__ = ["Tape", "expected_bytes"]

logger = logging.getLogger(__name__)

#: Tensors of a parameter's shape that an optimizer keeps.
MOMENTS_OF = {"adamw": 2, "sgd": 1}

#: Share of free space that has to be left when everything is written.
SPARE = 1.05


@final
class Tape:
    """Exact states of a run, one file each: what a `Checkpointer` would have been given.

    Each file holds ``{"state", "gradients", "collector"}``: the tree of `training.capture`, the averages of
    the gradients over the window before the step, and the seconds that averaging took.  The state before the
    first step holds the model only.

    Args:
        trainer: the run.
        experiment: its settings.
        folder: of the recording.
    """

    event: Final = "recorded"

    def __init__(self, trainer: Trainer, experiment: Experiment, folder: Path) -> None:
        self._trainer, self._experiment, self._folder = trainer, experiment, folder
        self._subject = Subject(trainer.model, trainer.optimizer, trainer.scheduler)
        names = parameter_names(self._subject.models)
        self._collector = GradientCollector([trainer.optimizer], names)
        self._collected = 0.0

    def __enter__(self) -> Tape:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._collector.close()

    def require_space(self) -> dict[str, int]:
        """What is still to be written, ``{"states", "bytes"}``, uncompressed.

        Raises:
            StorageError: the disk has no room for it.
        """
        left = [step for step in checkpoint_steps(self._experiment) if not self._has(step)]
        needed = len(left) * expected_bytes(self._trainer.model, self._experiment)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            raise StorageError(f"{self._folder}: cannot be written to: {error.strerror}.") from None
        if free < SPARE * needed:
            raise StorageError(
                f"{self._folder}: recording {len(left)} exact states needs about {needed:,} bytes and "
                f"{free:,} are free; free some space, or raise checkpoint_every."
            )
        return {"states": len(left), "bytes": needed}

    def restore(self) -> int:
        """Brings the trainer to the last state that was written; returns its step (0: none)."""
        step = 0
        for newest in reversed(checkpoint_steps(self._experiment)):
            if self._has(newest) and self._put_back(newest):
                step = newest
                break
        if not step:
            self._write(0, {"step": 0, "model": model_state(self._trainer.model)})
        self._begin_window()
        return step

    def after_step(self) -> None:
        """To be called after each optimizer step: averages gradients while a checkpoint is near."""
        every = self._experiment.checkpoint_every
        self._collector.follow(-self._trainer.step % every, WINDOW)

    def measure(self, search: list[float], heldout: list[float]) -> dict[str, Any]:  # noqa: ARG002 - a Companion's
        """Writes the state of this step; returns its size."""
        step = self._trainer.step
        size = self._write(step, capture(self._subject, step))
        self._begin_window()
        return {"step": step, "bytes": size}

    def _begin_window(self) -> None:
        self._collector.stop()
        self._collector.follow(self._experiment.checkpoint_every, WINDOW)

    def _write(self, step: int, state: dict[str, Any]) -> int:
        path = state_path(self._folder, step)
        path.parent.mkdir(parents=True, exist_ok=True)
        seconds, self._collected = self._collector.seconds - self._collected, self._collector.seconds
        tree = {"state": state, "gradients": self._collector.averages(), "collector": seconds}
        return save_file(tree, path, method="exact", moments="exact", exact="*").stored_bytes

    def _has(self, step: int) -> bool:
        return state_path(self._folder, step).exists()

    def _put_back(self, step: int) -> bool:
        """Whether the state of a step was whole; one that is damaged is taken again."""
        try:
            tree = load_state(self._folder, step)
        except ExperimentError as error:
            logger.warning("%s", error)
            return False
        put_back(self._subject, tree["state"])
        self._trainer.step = step
        return True


def expected_bytes(model: nn.Module, experiment: Experiment) -> int:
    """About the size of one recorded state: the model, what its optimizer keeps, and averages in float32."""
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    everything = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    averages = 4 * sum(parameter.numel() for parameter in model.parameters())
    return int(everything + MOMENTS_OF[experiment.optimizer.name] * weights + averages)
