"""Whether a signal's handler runs: what it asks for comes at any time, not where the loop would ask."""

from __future__ import annotations

import signal
import sys
import threading
from functools import partial
from types import CodeType, FrameType

__all__ = ["in_handler"]


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
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def _code(handler: object) -> CodeType | None:
    """What runs in the frame of a handler; None where it is no function, nor made of one."""
    while isinstance(handler, partial):
        handler = handler.func
    code = getattr(handler, "__code__", None)
    if code is None and callable(handler):
        code = getattr(getattr(type(handler), "__call__", None), "__code__", None)  # noqa: B004
    return code if isinstance(code, CodeType) else None
