"""How kernels are compiled: without the interpreter lock, serial, and kept on disk where that is possible.

A machine without any folder that Numba may write to (a read-only image, no home) still works: kernels are
then compiled anew in each process, which is said once.  ``NUMBA_CACHE_DIR`` names a folder for them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
from numba.core.compiler_lock import global_compiler_lock

__all__ = ["are_kept", "kernel"]

# A process forked while another thread compiles would find Numba's lock taken for ever: a fork waits for it.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)

logger = logging.getLogger(__name__)

OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": False, "boundscheck": False}


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a kernel at its first call; takes pre-allocated arrays and scalars, never allocates or raises.

    Example:
        >>> import numpy as np
        >>> @kernel
        ... def fill(out, value):
        ...     for index in range(out.size):
        ...         out[index] = value
        >>> numbers = np.zeros(2)
        >>> fill(numbers, 3.0)
        >>> numbers.tolist()
        [3.0, 3.0]
    """
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # no locator: nowhere to keep compiled code
        _tell()
        compiled = numba.njit(**OPTIONS)(function)
    return compiled


def are_kept() -> bool:
    """Whether Numba finds a folder that it may keep compiled kernels in."""
    try:
        numba.njit(cache=True)(_nothing)
    except RuntimeError:
        return False
    return True


def _nothing() -> None:
    """A function of this package's, to ask with; it is never compiled."""


@lru_cache(maxsize=1)
def _tell() -> None:
    """Says it once a process."""
    logger.warning(
        "Numba finds no folder it may keep compiled kernels in, so every process compiles them anew "
        "(about 15 s); set NUMBA_CACHE_DIR to a writable folder."
    )
