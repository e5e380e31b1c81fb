"""Kernels for CUDA devices, written in Triton, which torch's builds for them bring along.

Modules of such kernels import Triton at their top, so nothing imports them before `compiles` has said yes;
where it says no, operations of torch serve.  Triton compiles a kernel at its first call, with the machine's C
compiler for the part that starts it, and keeps what it compiled on disk.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from typing import Any, Final

import torch

__all__ = ["compiles", "fault", "on"]

logger = logging.getLogger(__name__)

#: What a driver says where no memory is left, or where nothing works any more until the process ends.
BROKEN: Final = (
    "out of memory",
    "illegal",
    "misaligned address",
    "launch failure",
    "launch timed out",
    "device-side assert",
    "invalid program counter",
    "hardware stack error",
    "uncorrectable",
    "context is destroyed",
    "unknown error",
)

_trying = threading.Lock()  # two threads that ask first would both compile


def compiles(device: torch.device) -> bool:
    """Whether kernels written in Triton run on a device; tried once in a process, and told where they do not.

    Example:
        >>> compiles(torch.device("cpu"))
        False
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    with _trying:
        return _tried(device)


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, kernels are started on a device; Triton starts them on the one that is current."""
    current = device.type != "cuda" or device.index is None or device.index == torch.cuda.current_device()
    return nullcontext() if current else torch.cuda.device(device)


def fault(attempt: Callable[[], str | None]) -> str | None:
    """What is wrong with kernels: what ``attempt`` says, or the error that it ends in; None: nothing.

    Raises what says nothing of them: no memory left, or a device that an earlier kernel has broken.

    Example:
        >>> fault(lambda: None), fault(lambda: str(1 / 0))
        (None, 'ZeroDivisionError: division by zero')
    """
    try:
        return attempt()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if _of_the_device(str(error)):
            raise
        return f"{type(error).__name__}: {error}"


def _of_the_device(message: str) -> bool:
    """Whether an error says that memory is used up or a device is broken, in torch's words or Triton's.

    Triton words what the driver says of a kernel's machine code alike.
    """
    triton = message.startswith("Triton Error [CUDA]")
    return message.startswith("CUDA error") or (triton and any(word in message for word in BROKEN))


@cache
def _tried(device: torch.device) -> bool:
    if importlib.util.find_spec("triton") is None:
        _tell("Triton is not installed")
        return False

    def probed() -> str | None:
        from dynaquant_core.device_probe import probe

        with on(device):
            right = probe(device)
        return None if right else "the kernel that tries it gave wrong numbers"

    wrong = fault(probed)
    if wrong is not None:
        _tell(wrong)
    return wrong is None


@lru_cache(maxsize=1)
def _tell(reason: str) -> None:
    """Says it once a process."""
    logger.warning(
        "Kernels for the device cannot be compiled (%.300s); operations of torch are used instead, which "
        "give the same bits and take several times as long. Triton needs a C compiler (gcc).",
        reason,
    )
