"""What answers a signal of ``save_on``: a committed checkpoint, whatever became of the save before."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dynaquant_core.errors import SaveError
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.training.signals import SignalFlag
from dynaquant_core.training.tolerance import told
from dynaquant_core.training.worker import Worker

__all__ = ["Answer"]

logger = logging.getLogger(__name__)


class Answer:
    """Answers one signal after the other; a request stays until a checkpoint of it is committed.

    Args:
        signals: that ask.
        worker: that commits.

    Attributes:
        by: the signal that was last answered with a checkpoint; None where none was.
    """

    def __init__(self, signals: SignalFlag, worker: Worker[CheckpointInfo]) -> None:
        self.by: str | None = None
        self._signals = signals
        self._worker = worker
        self._failures, self._failed_at = 0, 0

    def give(
        self, step: int, save: Callable[[], None], *, saved: bool, raises: bool, last: bool = False
    ) -> bool:
        """Saves if a signal has asked for it, and waits for the commit; whether it was tried.

        An error of the save before, made in the background, is raised when this one is committed: the process
        may be about to be ended.  What fails is tried again one step later, two later, four, and so on.

        Args:
            step: completed optimizer steps.
            save: saves the state as it is.
            saved: this very state was saved last, or restored; the worker's last checkpoint may be it.
            raises: whether errors are raised or logged.
            last: there will be no later step to try again at.

        Raises:
            SaveError: this save failed, or the one before.
            DynaQuantError: as ``save``.
        """
        asked = self._signals.asked
        if asked is None or (self._pauses(step) and not last):
            return False
        before, earlier = self._worker.result, self._settled()
        saved = saved and earlier is None and self._is_of(step)
        try:
            if not saved:
                save()
            with told(raises=raises):
                self._worker.wait()
        finally:  # evaluate may fail, and an exact checkpoint be there all the same
            there = self._is_of(step) and (saved or self._worker.result is not before)
            self._tell(asked, step, there=there)
        if earlier is not None:
            with told(raises=raises):
                raise earlier
        return True

    def drop(self, step: int) -> None:
        """Answers no more: nothing has moved here since the run began, or was restored, at ``step``."""
        asked = self._signals.take()
        if asked is not None:
            logger.warning(
                "%s is not answered: this Checkpointer was told of no step since it was at step %d, so its "
                "weights are saved under none",
                asked,
                step,
            )

    def close(self) -> None:
        """Waits for the signals no longer; one that was not answered is told in the log."""
        self._signals.close()

    def _pauses(self, step: int) -> bool:
        """Whether the last failure is too near; a restore may have gone back behind it."""
        return self._failures > 0 and 0 <= step - self._failed_at < 2 ** (self._failures - 1)

    def _is_of(self, step: int) -> bool:
        """Whether the worker's last checkpoint is of this step."""
        return self._worker.result is not None and self._worker.result.step == step

    def _settled(self) -> SaveError | None:
        """Waits for the save before; what it failed with, if nobody was told."""
        try:
            self._worker.wait()
        except SaveError as error:
            return error
        return None

    def _tell(self, asked: str, step: int, *, there: bool) -> None:
        if there:
            self._signals.take()
            self.by, self._failures = asked, 0
            logger.warning("%s answered: step %d is saved, the process goes on", asked, step)
            return
        self._failures, self._failed_at = self._failures + 1, step
        logger.warning("%s came, but step %d could not be saved", asked, step)
