"""The one place that decides how many threads work, and hands them work.

Numba kernels release the interpreter lock, so plain threads over slices of the data scale.  One pool serves
the whole process; a call made from inside one of its threads runs serially, so nesting never deadlocks.

Example:
    >>> from dynaquant_core.threads import map_threads, slices
    >>> map_threads(lambda part: part.stop - part.start, slices(10, minimum=10))
    [10]
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from dynaquant_core.arithmetic import plain_arithmetic, plainly
from dynaquant_core.cuda_streams import chosen_streams, on_streams
from dynaquant_core.errors import ConfigError

__all__ = ["MAX_THREADS", "cores", "in_background", "map_threads", "slices", "thread_count", "turn"]

#: More threads than this only fight for memory bandwidth.
MAX_THREADS = 16

#: Seconds in which a thread that was started has begun.
AMPLE = 5.0

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

    @contextmanager
    def working(self) -> Iterator[None]:
        """Marks the calling thread as one of the crew: calls inside it run serially."""
        self.inside.worker = True
        try:
            yield
        finally:
            self.inside.worker = False


_pool = _Pool()


def turn() -> threading.RLock:
    """A lock for one thread at a time; the one whose turn it is may take it again.

    A forked child finds it free: a thread that has it in the parent does not exist there.

    Example:
        >>> mine = turn()
        >>> with mine, mine:
        ...     pass
    """
    # With no class around it: in Python code a signal could raise after it is taken and before `with`.
    lock = threading.RLock()
    _turns.add(lock)
    return lock


_turns: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def _begin_in_child() -> None:
    """A forked child has none of the pool's threads, and locks perhaps in a locked state."""
    global _pool  # noqa: PLW0603 - the one process-wide pool
    _pool = _Pool()
    for lock in _turns:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as Python's own modules do


os.register_at_fork(after_in_child=_begin_in_child)


def cores() -> int:
    """Processors that the calling thread, and so every thread it starts, may run on.

    A job that is pinned to one core of 64 gains nothing by 64 threads.  All of the machine's where the
    system cannot say.

    Example:
        >>> from dynaquant_core.threads import cores
        >>> cores() >= 1
        True
    """
    # From Python 3.13 on; PYTHON_CPU_COUNT sets it.
    allowed: Callable[[], int | None] | None = getattr(os, "process_cpu_count", None)
    if allowed is not None:
        return allowed() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count() -> int:
    """How many threads a parallel call uses: ``DYNAQUANT_THREADS``, or `cores`, at most 16.

    Raises:
        ConfigError: the variable is set to something else than a positive whole number.

    Example:
        >>> from dynaquant_core.threads import thread_count
        >>> 1 <= thread_count() <= 16
        True
    """
    text = os.environ.get("DYNAQUANT_THREADS", "").strip()
    if not text:
        return min(cores(), MAX_THREADS)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"DYNAQUANT_THREADS must be a positive whole number, found {text!r}; unset it to use all cores."
        )
    return min(int(text), MAX_THREADS)


def in_background(job: Callable[[], object], name: str, give_up: Callable[[], object]) -> None:
    """Runs a job on a thread of its own, which is no daemon: a program that ends waits for it.

    What is asked for once the main thread has ended (`atexit`) runs on the calling one: nobody would wait.

    Args:
        job: what to run.
        name: of the thread.
        give_up: called where the job will not run, before this raises.

    Raises:
        RuntimeError: the system gives no thread.
    """
    if not threading.main_thread().is_alive():
        job()
        return
    begun = threading.Event()

    def run() -> None:
        begun.set()
        job()

    try:
        threading.Thread(target=run, name=name, daemon=False).start()
    except RuntimeError:
        give_up()
        raise
    except BaseException:  # Ctrl-C, before the thread was started or after
        if not begun.wait(AMPLE):
            give_up()
        raise


def map_threads(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Applies ``function`` to every item, in parallel, and returns the results in the items' order.

    Runs serially for one item, one thread, or a call from inside another `map_threads`; always in
    `plain_arithmetic`, and on the caller's CUDA streams.  It returns or raises only when no call is running
    any more, so arrays that the calls write into may be reused at once.

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
    work, most = list(items), thread_count()
    size = min(most, len(work))
    if size < 2 or _pool.nested():
        with plain_arithmetic():
            return [function(item) for item in work]
    return _Crew(function, work).run(_pool.get(most - 1), size - 1)


class _Crew(Generic[T, R]):
    """One parallel call: the caller and its helpers take items in turn until none is left.

    The caller works too, so a call pays for one hand-over a helper and not for one an item.
    """

    def __init__(self, function: Callable[[T], R], work: list[T]) -> None:
        self.function, self.work = function, work
        self.results: dict[int, R] = {}
        self.errors: dict[int, BaseException] = {}
        self.turn = itertools.count()
        self.streams = chosen_streams()

    def run(self, executor: ThreadPoolExecutor, helpers: int) -> list[R]:
        futures = self.called(executor, helpers)
        try:
            with _pool.working():
                self.take()
            self.join(futures)
        except BaseException as error:  # Ctrl-C while waiting
            self.errors.setdefault(len(self.work), error)  # nobody takes another item
            self.join(futures)
            raise
        if self.errors:
            raise self.errors[min(self.errors)]
        done = [self.results[index] for index in range(len(self.work))]
        # A helper lets go of this object a moment after its future is done; what it holds must not live on.
        self.work, self.results = [], {}
        del self.function
        return done

    def join(self, futures: Iterable[Future[None]]) -> None:
        """Waits for the helpers."""
        for future in futures:
            if not future.cancel():  # one that has not begun has nothing left to do
                future.result()

    def called(self, executor: ThreadPoolExecutor, helpers: int) -> list[Future[None]]:
        """The helpers that came; none where no thread can start, or at the interpreter's exit.

        Python closes executors before it waits for a thread that still writes a checkpoint: that one goes on
        alone.
        """
        futures: list[Future[None]] = []
        with suppress(RuntimeError):
            while len(futures) < helpers:
                futures.append(executor.submit(self.help))
        return futures

    def help(self) -> None:
        with on_streams(self.streams):
            self.take()

    @plainly
    def take(self) -> None:
        while not self.errors:
            index = next(self.turn)
            if index >= len(self.work):
                return
            try:
                self.results[index] = self.function(self.work[index])
            except BaseException as error:  # noqa: BLE001 - raised again by `run`
                self.errors[index] = error


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
    return [slice(low, high) for low, high in itertools.pairwise(edges)]
