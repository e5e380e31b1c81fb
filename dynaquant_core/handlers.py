"""Whether a signal's handler runs, or has raised: it comes at any time, not where the loop would ask."""

from __future__ import annotations

import signal
import sys
import threading
from functools import partial
from traceback import walk_tb
from types import CodeType, FrameType

__all__ = ["by_handler", "in_handler"]


def in_handler() -> bool:
    """Whether the caller was called, however far up the stack, by a signal's handler of this process.

    Python tells nobody so: the frames are compared with the handlers that are set.  One that was taken off
    while it runs is not found, nor one that is not written in Python.

    Example:
        >>> import os
        >>> told = []
        >>> before = signal.signal(signal.SIGUSR1, lambda *_: told.append(in_handler()))
        >>> os.kill(os.getpid(), signal.SIGUSR1)
        >>> _ = signal.signal(signal.SIGUSR1, before)
        >>> told, in_handler()
        ([True], False)
    """
    if threading.current_thread() is not threading.main_thread():  # where alone Python runs them
        return False
    codes = _codes()
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def by_handler(error: BaseException) -> bool:
    """Whether a signal's handler raised ``error``, or its cause: it is not about what it broke into.

    So torch ends a loop whose data loader has lost a worker, and alarms end what takes too long.  Who turns
    errors into others, or goes on after them, lets these pass.

    Example:
        >>> by_handler(ValueError())
        False
    """
    codes = _codes()
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if any(frame.f_code in codes for frame, _ in walk_tb(cause.__traceback__)):
            return True
        cause = cause.__cause__
    return False


def _codes() -> set[CodeType]:
    """What runs in the frames of the handlers that are set."""
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    return {code for code in codes if code is not None}


def _code(handler: object) -> CodeType | None:
    """What runs in the frame of a handler; None where it is no function, nor made of one."""
    while isinstance(handler, partial):
        handler = handler.func
    code = getattr(handler, "__code__", None)
    if code is None and callable(handler):
        code = getattr(getattr(type(handler), "__call__", None), "__code__", None)  # noqa: B004
    return code if isinstance(code, CodeType) else None
