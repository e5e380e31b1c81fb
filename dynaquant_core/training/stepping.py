"""Saves that a signal's handler asks for in the middle of an optimizer's step wait for its end.

Some weights have been moved there and others not, and some moments: no step of any run has such a state.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from torch.optim import Optimizer

from dynaquant_core.hooks import OwnedHooks, has_hooks, untraced

__all__ = ["Stepping"]

logger = logging.getLogger(__name__)

Save = Callable[[], None]

#: How the code begins in whose frame an optimizer's step runs: its own, torch's around it, a compiler's.
STEPS = ("step", "wrapper", "torch_dynamo_resume_in_")


class Stepping:
    """Knows whether a step of some optimizers is under way, and keeps the saves that wait for its end.

    Args:
        optimizers: whose steps are watched.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        >>> stepping, done = Stepping([optimizer]), []
        >>> stepping.under_way
        False
        >>> optimizer.step(lambda: done.append(stepping.under_way))
        >>> done
        [True]
    """

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        optimizers = list(optimizers)
        self._inside: int | None = None  # the thread in which a step has begun
        self._waiting: list[Save] = []
        me = weakref.ref(self)
        begins, ends = untraced(_telling(me, begins=True)), untraced(_telling(me, begins=False))
        seen = [optimizer for optimizer in optimizers if has_hooks(optimizer)]
        # A wrapper without hooks may have more to do when the step of the one that it wraps has ended.
        self._silent = [weakref.ref(optimizer) for optimizer in optimizers if not has_hooks(optimizer)]
        handles = [optimizer.register_step_pre_hook(begins) for optimizer in seen]
        handles += [optimizer.register_step_post_hook(ends) for optimizer in seen]
        self._hooks = OwnedHooks(self, handles)

    @property
    def under_way(self) -> bool:
        """Whether a step has begun that has not ended, not even in an error: its frame is still there."""
        frames = sys._current_frames()
        if self._inside is not None and _any_below(frames.get(self._inside), _is_optimizer):
            return True
        silent = [optimizer() for optimizer in self._silent]

        def is_silent(one: object) -> bool:
            return one is not None and any(one is optimizer for optimizer in silent)

        return bool(silent) and any(_any_below(frame, is_silent) for frame in frames.values())

    def postpone(self, save: Save) -> None:
        """Keeps a save for when the step is complete."""
        self._waiting.append(save)
        logger.warning(
            "a save was asked for in the middle of an optimizer's step: step() makes it when that is "
            "complete, and nobody if the process ends before (save_on= asks without ending it)"
        )

    def waiting(self) -> list[Save]:
        """Tells that the step is complete; the saves that waited for it, in order, are the caller's now.

        Whoever says so in a hook of the optimizer may be called before ours.
        """
        self._inside = None
        saves, self._waiting = self._waiting, []
        return saves

    def close(self) -> None:
        """Takes the hooks off; saves that wait are told in the log."""
        self._hooks.remove()
        if self.waiting():
            logger.warning(
                "a save that waited for the end of an optimizer's step was not made: none followed"
            )

    def tell(self, *, begins: bool) -> None:
        """Tells that a step begins or has ended, on this thread."""
        self._inside = threading.get_ident() if begins else None


def _any_below(frame: FrameType | None, found: Callable[[object], bool]) -> bool:
    """Whether the step of such an object runs in a frame, or in one that has called it."""
    while frame is not None:
        # Asking a frame for its locals has it keep them until it ends: a loop's would hold a batch's graph.
        if frame.f_code.co_name.startswith(STEPS) and found(frame.f_locals.get("self")):
            return True
        frame = frame.f_back
    return False


def _is_optimizer(one: object) -> bool:
    return isinstance(one, Optimizer)


def _telling(stepping: weakref.ref[Stepping], *, begins: bool) -> Callable[..., None]:
    """A hook that keeps nothing alive."""

    def tell(*_: Any) -> None:
        held = stepping()
        if held is not None:
            held.tell(begins=begins)

    return tell
