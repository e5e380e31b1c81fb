"""The saves of one run into its folder, told apart by the step that they are of."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dynaquant_core.errors import DynaQuantError, EvaluationError, StateMismatchError, StoreNotEmptyError
from dynaquant_core.handlers import by_handler
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.store import CheckpointStore
from dynaquant_core.training.answer import Answer
from dynaquant_core.training.saver import Saver
from dynaquant_core.training.tolerance import told
from dynaquant_core.training.untold import Untold
from dynaquant_core.training.worker import Worker

__all__ = ["Saves"]

logger = logging.getLogger(__name__)

#: How often the last save is begun where signals' handlers raise in it.
LAST_TRIES = 5


class Saves:
    """Makes saves, knowing which step the last one was of and whether the folder is this run's.

    Args:
        store: where to.
        saver: makes one.
        worker: of the saver.
        answer: to signals.
        untold: of the optimizers' steps.
        raises: whether a save that fails raises or is logged.

    Attributes:
        raises: may be changed.
        step: of the last save that came to the worker, or of the checkpoint that was put back since.
        moved: whether this object was told of a step, or to save, since it was made or put back.  One that
            was not knows of no step that its weights are of: under DDP that is every rank but the saving one.
        misfit: a checkpoint of the folder was put back in part only, or could not be, and nothing else says
            that the folder is this run's.
    """

    def __init__(
        self,
        store: CheckpointStore,
        saver: Saver,
        worker: Worker[CheckpointInfo],
        answer: Answer,
        untold: Untold,
        *,
        raises: bool,
    ) -> None:
        self.raises = raises
        self.step: int | None = None
        self.moved = False
        self.misfit = False
        self._own = False  # this object has saved into the folder, or restored from it
        self._store = store
        self._saver = saver
        self._worker = worker
        self._answer = answer
        self._untold = untold

    def make(self, step: int, threshold: float | None, *, again: bool) -> None:
        """Saves the state as it is.

        Args:
            step: completed optimizer steps.
            threshold: of this save alone; None: the run's.
            again: whether also where that step was saved or restored last.

        Raises:
            SaveError: the save before failed in the background, or the state is half of a step.
            StoreNotEmptyError: the folder is not this run's.
            EvaluationError: evaluate failed; an exact checkpoint was committed.
            DynaQuantError: this one failed.
        """
        if self.step == step and not again:
            return
        if self.misfit and not again:
            logger.warning("a save was asked for in a restore() that did not end well, and is not made")
            return
        self.moved = True
        with told(raises=self.raises):
            self._untold.look(step)
            self._make(step, threshold)

    def restored(self, step: int | None) -> None:
        """Tells that a checkpoint was put back; None: there was none yet."""
        self.misfit, self._own = False, self._own or step is not None
        # A save of the same step in another life is another one; what was asked for in there adds nothing.
        self.step, self.moved = step, self.moved and step is None

    def not_restored(self, error: BaseException) -> None:
        """Tells that a restore has failed.

        A checkpoint that does not fit was loaded, which alone would give the right to write here; any other
        error of ours comes before that.  One that is not ours (Ctrl-C) may have come in the midst of it.
        """
        if isinstance(error, StateMismatchError):
            self.misfit = self.misfit or error.in_part or not self._own
        elif not isinstance(error, DynaQuantError):
            self.misfit = True

    def answer(self, step: int, save: Callable[[], None], *, last: bool = False) -> bool:
        """Saves if a signal has asked for it (`Answer.give`); whether one has.

        Args:
            step: completed optimizer steps.
            save: saves the state as it is.
            last: nobody tells of a step, it is the end.
        """
        if last and not self.moved:
            self._answer.drop(step)
            return False
        self.moved = True
        interruption: Exception | None = None
        for _ in range(LAST_TRIES if last else 1):
            saved = self.step == step  # perhaps within a tighter threshold
            try:
                answered = self._answer.give(step, save, saved=saved, raises=self.raises, last=last)
                break
            except Exception as error:
                if not (last and by_handler(error)):
                    raise
                interruption = (
                    error  # as of a second loader that has lost its workers; there is no later step
                )
        if interruption is not None:
            raise interruption
        return answered

    def look_ahead(self) -> None:
        """Says what every save would refuse of the folder, hours before the first is due.

        Raises:
            StoreNotEmptyError: it holds checkpoints that this run was not restored from.
        """
        try:
            self._require_own_folder()
            self._store.require_own_run()
        except StoreNotEmptyError as error:
            if self.raises:
                raise
            logger.warning("no checkpoint can be saved while this is so: %s", error)
        except DynaQuantError:  # a disk that does not answer: for the save to tell, if it still is so then
            return

    def _make(self, step: int, threshold: float | None) -> None:
        self.step = None
        with told(raises=self.raises):
            self._worker.wait()
        self._require_own_folder()
        try:
            self._saver.save(step, threshold)
        except EvaluationError:  # an exact checkpoint is there
            self.step, self._own = step, True
            raise
        self.step, self._own = step, True

    def _require_own_folder(self) -> None:
        if self.misfit:
            raise StoreNotEmptyError(
                f"{str(self._store.path)!r} holds checkpoints that could not be restored into this run, or "
                f"not to the end; call restore() again, or save into another folder."
            )
