"""Figures of checkpoints among what a script logs, under the steps by which the script itself counts."""

from __future__ import annotations

from typing import Any, Final

from dynaquant_core import CheckpointInfo
from dynaquant_core.plugins import figures_of

__all__ = ["Tracking"]

#: Rows of this tracker only grow: one that is begun with our figures alone would move the script's own.
UNFINISHED: Final = {"wandb": {"commit": False}}


class Tracking:
    """Puts figures into an accelerator's trackers.

    A script may log by epochs, by batches, or by no number at all, and some trackers drop what comes under a
    lower step than the last.  So figures go under the step that the script has logged last, or under none.

    Args:
        accelerator: whose ``log`` the script calls.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator, self._log = accelerator, accelerator.log
        self._step: int | None = None

    def log(self, values: Any, step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """As ``Accelerator.log``; the step is remembered."""
        self._step = step
        return self._log(values, step, *args, **kwargs)

    def put(self, info: CheckpointInfo) -> None:
        """Logs the figures of a checkpoint; its own step is one of them."""
        if self._accelerator.trackers:
            self._log(figures_of(info), step=self._step, log_kwargs=UNFINISHED if self._step is None else {})
