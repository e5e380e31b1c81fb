"""Arithmetic as torch has it by itself, whatever the loop around a save or a load has switched on.

Inside of `torch.autocast` some operations give other dtypes than their tensors have, and some raise where a
tensor is of the half that it does not take.  After `torch.set_flush_denormal(True)` subnormal numbers are
zeros.  Codes and decoded values must depend on neither: another process reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, TypeVar, cast

import torch

__all__ = ["plain_arithmetic", "plainly"]

#: Devices whose autocast a loop may be in.
KINDS = ("cpu", "cuda", "mps", "xpu")

#: The smallest number above zero; by its bits, since a text would be read as zero where those are flushed.
SMALLEST: float = struct.unpack("<d", b"\1" + bytes(7))[0]

Called = TypeVar("Called", bound=Callable[..., Any])


@contextmanager
def plain_arithmetic() -> Iterator[None]:
    """Leaves autocast and lets subnormal numbers be, on the calling thread, until the context is left.

    Example:
        >>> half = torch.ones(2, dtype=torch.float16)
        >>> with torch.autocast("cpu", torch.bfloat16), plain_arithmetic():
        ...     torch.stack([half, half]).dtype
        torch.float16
    """
    kinds = [kind for kind in KINDS if torch.is_autocast_enabled(kind)]
    flushes = SMALLEST == 0.0
    if not kinds and not flushes:
        yield
        return
    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        if flushes:
            torch.set_flush_denormal(False)
            stack.callback(torch.set_flush_denormal, True)
        yield


def plainly(function: Called) -> Called:
    """A function that runs in `plain_arithmetic`; of a generator each step does, nothing between.

    Example:
        >>> half = torch.ones(2, dtype=torch.float16)
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     plainly(torch.stack)([half, half]).dtype
        torch.float16
    """

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with plain_arithmetic():
            return function(*args, **kwargs)

    @wraps(function)
    def stepped(*args: Any, **kwargs: Any) -> Iterator[Any]:
        steps, end = function(*args, **kwargs), object()
        while True:
            with plain_arithmetic():
                step = next(steps, end)
            if step is end:
                return
            yield step

    return cast("Called", stepped if isgeneratorfunction(function) else called)
