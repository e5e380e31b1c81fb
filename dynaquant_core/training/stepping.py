"""What optimizers have done since the run was last told of a step, and the saves that wait for it.

In the middle of an optimizer's step some weights have been moved and others not, and some moments: no step of
any run has such a state.  Between its end and the call that tells of it the state is a whole one, but of a
step whose number, scheduler and scaler are still those of the step before.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from torch.optim import Optimizer

from dynaquant_core.handlers import in_handler
from dynaquant_core.hooks import OwnedHooks, has_hooks, untraced, watched

__all__ = ["Stepping"]

logger = logging.getLogger(__name__)

Save = Callable[[], None]

#: Names of the code in whose frame an optimizer's step runs: its own, and torch's around it.
STEPS = ("step", "wrapper")
#: Torch's compiler has names of its own for what follows a break in either.
RESUMED = "torch_dynamo_resume_in_"


class Stepping:
    """Watches the steps of some optimizers, and keeps the saves that wait for the end of one.

    Args:
        optimizers: whose steps are watched, or those of what they wrap.

    Attributes:
        moved: whether an optimizer has begun a step that nobody has told of yet.
        told: whether anybody ever told of one.
        unheard: steps that were told of since one of the optimizers took any; 0 where that cannot be known.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        >>> stepping, done = Stepping([optimizer]), []
        >>> stepping.under_way
        False
        >>> optimizer.step(lambda: done.append(stepping.under_way))
        >>> done, stepping.moved
        ([True], True)
        >>> stepping.tell()
        []
        >>> stepping.moved
        False
    """

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        optimizers = list(optimizers)
        self.moved = self.told = False
        self.unheard = 0
        self._open: dict[int, int] = {}  # optimizers whose step has begun and not ended -> thread
        self._waiting: list[tuple[Save, bool]] = []  # and whether the state was a whole one
        self._at_end: Callable[[], None] | None = None
        me = weakref.ref(self)
        begins, ends = untraced(_telling(me, begins=True)), untraced(_telling(me, begins=False))
        inner = [one for one in map(watched, optimizers) if one is not None]
        seen = list({id(optimizer): optimizer for optimizer in inner}.values())
        self._hears_all = bool(optimizers) and len(inner) == len(optimizers)
        # A wrapper without hooks may have more to do when the step of the one that it wraps has ended.
        self._silent = [weakref.ref(optimizer) for optimizer in optimizers if not has_hooks(optimizer)]
        handles = [optimizer.register_step_pre_hook(begins) for optimizer in seen]
        handles += [optimizer.register_step_post_hook(ends) for optimizer in seen]
        self._hooks = OwnedHooks(self, handles)

    @property
    def under_way(self) -> bool:
        """Whether a step has begun that has not ended, not even in an error: its frame is still there."""
        frames = sys._current_frames()
        if any(_any_below(frames.get(thread), _is_optimizer) for thread in set(self._open.values())):
            return True
        silent = [optimizer() for optimizer in self._silent]

        def is_silent(one: object) -> bool:
            return one is not None and any(one is optimizer for optimizer in silent)

        return bool(silent) and any(_any_below(frame, is_silent) for frame in frames.values())

    @property
    def broken_off(self) -> bool:
        """Whether a step ended in an error, and since then none of that optimizer, nor was anything told."""
        return bool(self._open) and not self.under_way

    @property
    def must_wait(self) -> bool:
        """Whether a save that is asked for now has to wait for `tell`.

        That is in the middle of a step, and where a handler asks before a loop has told of it.  A loop that
        asks there itself has its reasons; so has one that never tells.
        """
        return self.under_way or (self.moved and self.told and in_handler())

    def postpone(self, save: Save, at_end: Callable[[], None]) -> None:
        """Keeps a save for when the step is complete.

        Args:
            save: makes it.
            at_end: to be called where the process ends before; it asks for what is `left`.
        """
        half = self.under_way
        self._waiting.append((save, not half))
        if half:
            logger.warning(
                "a save was asked for in the middle of an optimizer's step: step() makes it when that is "
                "complete, and nobody if the process ends before (save_on= asks without ending it)"
            )
            return
        logger.info("a save was asked for between an optimizer's step and step(), which makes it")
        if self._at_end is None:
            self._at_end = at_end
            atexit.register(at_end)

    def tell(self) -> list[Save]:
        """Tells that the step is complete; the saves that waited for it, in order, are the caller's now.

        Whoever says so in a hook of the optimizer may be called before ours.
        """
        self.unheard = 0 if self.moved or not self._hears_all else self.unheard + 1
        self.told = True
        self._forget_step()
        return [save for save, _ in self._taken()]

    def restored(self) -> None:
        """Tells that the state is a checkpoint's, whatever was being made of it."""
        self.unheard = 0
        self._forget_step()

    def left(self) -> list[Save]:
        """The saves that nobody will tell of a step for, and that are to be made of the state as it is.

        Those that found half of a step are told in the log.
        """
        half = bool(self._open)
        waiting = self._taken()
        whole = [save for save, whole in waiting if whole and not half]
        if len(whole) < len(waiting):
            logger.warning(
                "a save that waited for the end of an optimizer's step was not made: none followed"
            )
        return whole

    def close(self) -> None:
        """Takes the hooks off."""
        self._hooks.remove()

    def hear(self, optimizer: Optimizer, *, begins: bool) -> None:
        """Tells that a step of an optimizer begins or has ended, on this thread."""
        if begins:
            self.moved = True
            self._open[id(optimizer)] = threading.get_ident()
        else:
            self._open.pop(id(optimizer), None)

    def _forget_step(self) -> None:
        self.moved = False
        self._open.clear()

    def _taken(self) -> list[tuple[Save, bool]]:
        if self._at_end is not None:
            atexit.unregister(self._at_end)
            self._at_end = None
        waiting, self._waiting = self._waiting, []
        return waiting


def _any_below(frame: FrameType | None, found: Callable[[object], bool]) -> bool:
    """Whether the step of such an object runs in a frame, or in one that has called it."""
    while frame is not None:
        name = frame.f_code.co_name
        # Asking a frame for its locals has it keep them until it ends: a loop's would hold a batch's graph.
        if (name in STEPS or name.startswith(RESUMED)) and found(frame.f_locals.get("self")):
            return True
        frame = frame.f_back
    return False


def _is_optimizer(one: object) -> bool:
    return isinstance(one, Optimizer)


def _telling(stepping: weakref.ref[Stepping], *, begins: bool) -> Callable[..., None]:
    """A hook that keeps nothing alive."""

    def tell(optimizer: Optimizer, *_: Any) -> None:
        held = stepping()
        if held is not None:
            held.hear(optimizer, begins=begins)

    return tell
