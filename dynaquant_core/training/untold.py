"""What a save knows of optimizers' steps that nobody told of, or told of and no optimizer took."""

from __future__ import annotations

import logging

from dynaquant_core.errors import SaveError
from dynaquant_core.training.stepping import Stepping

__all__ = ["Untold"]

logger = logging.getLogger(__name__)

#: Steps in a row that a scaler may skip, or a loop tell of between two of an optimizer, before it is said.
MANY = 10


class Untold:
    """Compares what a run tells of its steps with what its optimizers do; each kind is said once.

    Args:
        stepping: of the optimizers.
    """

    def __init__(self, stepping: Stepping) -> None:
        self._stepping = stepping
        self._said_moved = self._said_unheard = False

    def look(self, step: int) -> None:
        """Looks at the state that is to be saved as that after ``step`` steps.

        Raises:
            SaveError: it is half of a step.
        """
        if self._stepping.broken_off:
            raise SaveError(
                f"an optimizer's step after step {step} has begun and ended in an error (Ctrl-C?), so half "
                "of the weights may have moved, and nothing is saved: the checkpoint before stays; "
                "call step() first to save them all the same, as the next step (save_on='SIGINT' makes a "
                "whole one of Ctrl-C)."
            )
        if self._stepping.moved and not self._said_moved:
            self._said_moved = True
            called = "since step() was last called" if self._stepping.told else "and step() was never called"
            logger.warning(
                "this state is saved as that of step %d, at which restore() will begin, but an optimizer has "
                "stepped %s: call step() after every optimizer step, and before save()",
                step,
                called,
            )
        if self._stepping.unheard >= MANY and not self._said_unheard:
            self._said_unheard = True
            logger.warning(
                "step() was called %d times since an optimizer of this Checkpointer took a step: if the run "
                "has made a new optimizer, its state is in no checkpoint; add to the groups of the old one "
                "(add_param_group), or give the new one to another Checkpointer, in a folder of its own",
                self._stepping.unheard,
            )
