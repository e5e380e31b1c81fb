"""How kernels are compiled: without the interpreter lock, serial, and kept on disk where that is possible.

A machine without any folder that Numba may write to (a read-only image, no home) still works: kernels are
then compiled anew in each process, which is said once.  ``NUMBA_CACHE_DIR`` names a folder for them.

Numba keeps a kernel until the file that it stands in is changed.  What a kernel calls is compiled into it,
from whatever file; so ours are kept until any file with kernels is changed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
import xxhash
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
        _date(compiled)
    except RuntimeError:  # no locator: nowhere to keep compiled code
        _tell()
        compiled = numba.njit(**OPTIONS)(function)
    return compiled


def _date(compiled: Any) -> None:
    """Has Numba ask for all files with kernels before it takes what it kept, beside the kernel's own."""
    cache = getattr(compiled, "_cache", None)  # none where NUMBA_DISABLE_JIT is set
    kept: Any = getattr(cache, "_cache_file", None)
    if hasattr(kept, "_source_stamp"):
        kept._source_stamp = kept._source_stamp, _sources()


@lru_cache(maxsize=1)
def _sources() -> str:
    """A digest of this package's files with kernels, and of how they are compiled; of their texts alone.

    An image may keep kernels that were compiled where it was built, so times and places must not count.
    """
    digest = xxhash.xxh3_128()
    for path in sorted(_kernel_files()):
        with suppress(OSError):  # where the package is no folder
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _kernel_files() -> Iterator[Path]:
    own = Path(__file__)
    yield own
    for folder, inside, files in os.walk(own.parent):
        inside[:] = [name for name in inside if name != "__pycache__"]
        yield from (Path(folder, name) for name in files if name.endswith("kernels.py"))


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
