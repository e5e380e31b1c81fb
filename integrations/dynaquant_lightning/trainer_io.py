"""The part of the CheckpointIO that knows a Trainer: what is searched with, what is linked, when to wait."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus

from dynaquant_core import CheckpointInfo
from dynaquant_core.errors import DynaQuantError, SaveError
from dynaquant_core.plugins import figures_of
from dynaquant_lightning.asking import removed_in_order
from dynaquant_lightning.io import DynaQuantCheckpointIO
from dynaquant_lightning.paths import is_ours, local
from dynaquant_lightning.reading import read_checkpoint
from dynaquant_lightning.tree import LAST, kind_note, to_tree
from dynaquant_lightning.validation import Validation

__all__ = ["TrainerCheckpointIO"]

logger = logging.getLogger(__name__)

UNTRIED = "nothing was tried yet"


class TrainerCheckpointIO(DynaQuantCheckpointIO):
    """Installed into one Trainer by its callback.

    Args:
        trainer: whose checkpoints these are.
        metric: name of the logged value to search with; None: the validation loss.
        options: as `DynaQuantCheckpointIO`.
    """

    def __init__(self, trainer: Trainer, metric: str | None, **options: Any) -> None:
        super().__init__(**options)
        self.trainer = trainer
        self._measures = not options.get("evaluate")
        self._metric = metric
        self._validation: Validation | None = None
        self._unmeasured: str | None = UNTRIED  # why nothing can be measured
        self._over = True  # nothing waits for saves: training has not begun, or has ended
        self._moment = 0  # counts the hooks of training that have run
        self._newest: tuple[str, int] | None = None  # the folder saved last, and when
        self._axis: dict[int, int] = {}  # steps of saves, and where the loggers' x axis was then

    def begin_training(self) -> None:
        """Tells that the Trainer's model, optimizers and data are ready."""
        self._validation = Validation(self.trainer, self._metric) if self._measures else None
        self._unmeasured, self._over = UNTRIED, False
        self._axis.clear()
        self._watch()

    def _watch(self) -> None:
        measure = None if self._unmeasured else self._validation
        self.watch(self.trainer.lightning_module, self.trainer.optimizers, evaluate=measure)

    def went_on(self) -> None:
        """Tells that code other than a ModelCheckpoint's has run since the last call."""
        self._moment += 1

    # -- saving ------------------------------------------------------------------------------------

    def takes(self, checkpoint: Mapping[str, Any], path: Any) -> bool:
        """Whole checkpoints; not the bare weights that a launcher carries between processes."""
        return super().takes(checkpoint, path) and {"state_dict", "global_step"} <= set(checkpoint)

    def choose(self, checkpoint: dict[str, Any], path: Any) -> None:
        """Searches with all ranks; each of them calls it before rank 0 saves."""
        if self.turns.busy or self._is_interrupted or not self.takes(checkpoint, path):
            return
        if self._twin(path) is not None:
            return
        with torch.inference_mode(False), self.turns.held():
            self._find_measure()
            run = self.runs.serving(checkpoint)
            run.choose(self.step_of(checkpoint), to_tree(checkpoint, local(path)))
            self._newest = local(path), self._moment

    def finish(self, checkpoint: dict[str, Any], path: Any) -> None:
        """Waits with all ranks, which call it after rank 0's save, where somebody may lean on it at once.

        A ModelCheckpoint's goes on in the background: ranks that load it wait for it then.

        Raises:
            SaveError: it could not be written, here or on another rank.
        """
        if self.turns.busy or self._is_interrupted or not self.takes(checkpoint, path):
            return
        if self._must_wait(local(path)):
            self.meet()

    def meet(self) -> None:
        """`wait` for all ranks together: one that went on alone would leave the others in a collective."""
        problem: DynaQuantError | None = None
        try:
            self.wait()
        except DynaQuantError as error:
            problem = error
        if not self.trainer.strategy.reduce_boolean_decision(problem is None, all=True):
            raise problem or SaveError("another rank could not write a checkpoint; look at its log.")

    def save_folder(self, checkpoint: dict[str, Any], path: str) -> None:
        """Saves, or links where the same moment was saved under another name."""
        try:
            self._save_or_link(checkpoint, path)
            if self._must_wait(path) and not self._meets:
                self.wait()
        except DynaQuantError as error:
            if not self._is_interrupted:
                raise
            logger.error("no checkpoint of the interrupted training: %s", error)  # its own error is raised

    def begin_folder(self, checkpoint: dict[str, Any], path: str) -> None:
        """As the base; notes where the figures of this save belong."""
        loop = self.trainer.fit_loop.epoch_loop
        self._axis[int(checkpoint["global_step"])] = loop._batches_that_stepped
        super().begin_folder(checkpoint, path)

    def _save_or_link(self, checkpoint: dict[str, Any], path: str) -> None:
        twin = self._twin(path)
        if twin is not None:
            run = self.runs.begin(path, checkpoint)
            run.copy(twin, path, note={LAST: Path(path).name, **kind_note(checkpoint)})
            return
        if self.trainer.world_size == 1:
            self._find_measure()
        self.begin_folder(checkpoint, path)
        self._newest = path, self._moment

    def _twin(self, path: Any) -> str | None:
        """The folder saved at this moment, where ``path`` is the "last" of the same ModelCheckpoint."""
        if self._newest is None or self._newest[1] != self._moment:
            return None
        newest = self._newest[0]
        callbacks = [one for one in self.trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint)]
        lasts = [one for one in callbacks if local(one.last_model_path) == local(path) != newest]
        savers = [one for one in lasts if newest in map(local, (one.best_model_path, *one.best_k_models))]
        return newest if savers else None

    def _find_measure(self) -> None:
        """Reads the validation data at the first save; without a measure the configuration is fixed.

        Every rank comes to the same, and each save tries again: a `validation_step` may lean on what only
        the first validation sets up.
        """
        if self.runs.watches_another(self.trainer.lightning_module):  # it was validated, tested or asked
            if self._validation is not None:
                logger.warning("no search, as the module to save is not the one that was trained")
            self._validation = None
            self._watch()
        if self._validation is None or (self._validation.ready and self._unmeasured is None):
            return
        reason = self._validation.prepare()
        if not self.trainer.strategy.reduce_boolean_decision(reason is None, all=True):
            reason = reason or "another rank cannot measure"
        if reason is not None and reason != self._unmeasured:
            logger.warning("no search, as %s", reason)
        self._unmeasured = reason
        self._watch()

    @property
    def _is_interrupted(self) -> bool:
        return bool(self.trainer.state.status == TrainerStatus.INTERRUPTED)

    @property
    def _meets(self) -> bool:
        """Whether all ranks `finish` this save together."""
        return bool(self.trainer.world_size > 1 and self.trainer.state.status == TrainerStatus.RUNNING)

    def _must_wait(self, path: str) -> bool:
        """Whether nothing would wait for the save, or somebody may look at it or lean on it at once."""
        state = self.trainer.state
        running = state.fn == TrainerFn.FITTING and state.status == TrainerStatus.RUNNING and not self._over
        linked = any(getattr(one, "save_last", None) == "link" for one in self.trainer.checkpoint_callbacks)
        return not running or linked or not removed_in_order(path)

    def teardown(self) -> None:
        """Waits for everything that is being written; an error of the training's own is never hidden."""
        self._over = True
        try:
            super().teardown()
        except DynaQuantError as error:
            if not self._is_interrupted:
                raise
            logger.error("a checkpoint of the interrupted training is missing: %s", error)

    # -- loading -----------------------------------------------------------------------------------

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Loads; only a fit goes on from what it loads."""
        if self.trainer.state.fn == TrainerFn.FITTING or not is_ours(path):
            return super().load_checkpoint(path, map_location, weights_only)
        return read_checkpoint(path, map_location, weights_only)  # type: ignore[no-any-return]

    # -- telling -----------------------------------------------------------------------------------

    def reported(self, info: CheckpointInfo) -> None:
        """Logs what a checkpoint cost and promises, beside what Lightning logged when it was saved.

        Lightning's x axis counts batches, whatever number of optimizers stepped in each.
        """
        for each in self.trainer.loggers:
            each.log_metrics(figures_of(info), step=self._axis.get(info.step, info.step))
