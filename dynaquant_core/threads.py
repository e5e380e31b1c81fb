"""The one place that decides how many threads work, and hands them work.

Numba kernels release the interpreter lock, so plain threads over slices of the data scale.  One pool serves
the whole process; a call made from inside one of its threads runs serially, so nesting never deadlocks.

Example:
    >>> from dynaquant_core.threads import map_threads, slices
    >>> map_threads(lambda part: part.stop - part.start, slices(10, minimum=10))
    [10]
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TypeVar

from dynaquant_core.errors import ConfigError

__all__ = ["MAX_THREADS", "map_threads", "slices", "thread_count"]

#: More threads than this only fight for memory bandwidth.
MAX_THREADS = 16

T = TypeVar("T")
R = TypeVar("R")


class _Pool:
    """The process's executor, remade when the number of threads changes or after a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = threading.local()
        self.size = 0
        self.executor: ThreadPoolExecutor | None = None

    def get(self, size: int) -> ThreadPoolExecutor:
        with self.lock:
            if self.executor is None or self.size != size:
                self.size = size
                self.executor = ThreadPoolExecutor(size, "dynaquant", initializer=self.enter)
            return self.executor

    def enter(self) -> None:
        self.inside.worker = True

    def nested(self) -> bool:
        return getattr(self.inside, "worker", False)


_pool = _Pool()


def _forget_pool() -> None:
    """A forked child has none of the pool's threads, and perhaps its lock in a locked state."""
    global _pool  # noqa: PLW0603 - the one process-wide pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_forget_pool)


def thread_count() -> int:
    """How many threads a parallel call uses: ``DYNAQUANT_THREADS``, or the cores, at most 16.

    Raises:
        ConfigError: the variable is set to something else than a positive whole number.

    Example:
        >>> from dynaquant_core.threads import thread_count
        >>> 1 <= thread_count() <= 16
        True
    """
    text = os.environ.get("DYNAQUANT_THREADS", "").strip()
    if not text:
        return min(os.cpu_count() or 1, MAX_THREADS)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"DYNAQUANT_THREADS must be a positive whole number, found {text!r}; unset it to use all cores."
        )
    return min(int(text), MAX_THREADS)


def map_threads(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Applies ``function`` to every item, in parallel, and returns the results in the items' order.

    Runs serially for one item, one thread, or a call from inside another `map_threads`.  It returns or raises
    only when no call is running any more, so arrays that the calls write into may be reused at once.

    Args:
        function: releases the interpreter lock where it matters; must not depend on the order of calls.
        items: what it is applied to.

    Raises:
        Exception: of the calls that raised, the first one's in the items' order; calls not yet begun are
            dropped.

    Example:
        >>> from dynaquant_core.threads import map_threads
        >>> map_threads(abs, [-1, 2, -3])
        [1, 2, 3]
    """
    work = list(items)
    size = thread_count()
    if len(work) < 2 or size == 1 or _pool.nested():
        return [function(item) for item in work]
    executor = _pool.get(size)
    futures = [executor.submit(function, item) for item in work]
    wait(futures, return_when=FIRST_EXCEPTION)
    for future in futures:
        future.cancel()
    wait(futures)
    failed = [future for future in futures if not future.cancelled() and future.exception() is not None]
    return [future.result() for future in failed or futures]


def slices(n: int, minimum: int) -> list[slice]:
    """Splits the positions of a flat array among the threads.

    Args:
        n: length of the array.
        minimum: no slice is shorter than this unless the array is; below it a thread costs more than it
            brings.

    Returns:
        Consecutive slices that cover ``range(n)``, at most one a thread; none for an empty array.

    Example:
        >>> from dynaquant_core.threads import slices
        >>> slices(5, minimum=100)
        [slice(0, 5, None)]
    """
    if n <= 0:
        return []
    parts = max(1, min(thread_count(), n // max(1, minimum)))
    edges = [n * part // parts for part in range(parts + 1)]
    return [slice(low, high) for low, high in pairwise(edges)]
