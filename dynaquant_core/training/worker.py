"""One background thread that writes one checkpoint at a time."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from dynaquant_core.errors import SaveError
from dynaquant_core.threads import in_background

__all__ = ["Worker", "await_all"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

#: Every one of this process; one that is at work is kept alive by its thread.
_all: weakref.WeakSet[Worker[Any]] = weakref.WeakSet()


class Worker(Generic[Result]):
    """Runs one job at a time on a thread of its own; failures come back to the calling thread.

    The thread lives as long as its job and is not a daemon: a program that ends without `close` still
    finishes the write it started.

    Args:
        place: that its jobs write into, for `await_all`.

    Example:
        >>> worker = Worker("checkpoints")
        >>> worker.submit(lambda: "written")
        >>> worker.wait()
        'written'
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self._place = os.path.realpath(place)
        self._process = os.getpid()
        self._running: _End | None = None
        self._result: Result | None = None
        self._fresh_error: BaseException | None = None
        self._first_error: BaseException | None = None
        _all.add(self)

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        mine = self._process == os.getpid()  # a forked child has no such thread
        return mine and self._running is not None and not self._running.told

    @property
    def result(self) -> Result | None:
        """What the last good job returned; None before the first."""
        return self._result

    def submit(self, job: Callable[[], Result]) -> None:
        """Starts ``job``, after the one before it has ended: two saves are never in memory together.

        Raises:
            SaveError: the job before failed and nobody was told yet, or the system gives no thread; ``job``
                is not started.
        """
        self.wait()
        end = _End()
        self._process, self._running = os.getpid(), end
        try:
            in_background(partial(self._run, job, end), "dynaquant-save", end.tell)
        except RuntimeError as error:
            raise SaveError(
                f"the checkpoint was not written, as no thread could be started for it ({error}); "
                "raise the limit on processes and threads, or save again when fewer are running."
            ) from error

    def wait(self) -> Result | None:
        """Waits for the running job and returns the last good result (None before the first).

        Raises:
            SaveError: a job failed since the last call; chained to its cause.
        """
        self._await()
        self.check()
        return self._result

    def check(self) -> None:
        """Raises SaveError, once, if a job has failed since the last call; never waits."""
        error, self._fresh_error = self._fresh_error, None
        if error is not None:
            raise SaveError(_message(error)) from error

    def close(self) -> None:
        """Waits for the running job.

        Raises:
            SaveError: any job failed since the start, told before or not; chained to the first cause.
        """
        self._await()
        self._fresh_error = None
        error, self._first_error = self._first_error, None
        if error is not None:
            raise SaveError(_message(error)) from error

    def await_end(self, place: str) -> None:
        """Waits for the running job if it writes into ``place``; failures stay to be told."""
        if self._place == place:
            self._await()

    def _await(self) -> None:
        """Not `Thread.join`, which forgets its thread where a signal raises in it."""
        if self.busy and self._running is not None:
            self._running.wait()

    def _run(self, job: Callable[[], Result], end: _End) -> None:
        try:
            self._result = job()
        except BaseException as error:  # noqa: BLE001 - carried to the calling thread, never dropped
            logger.error("a save in the background failed: %s", error)
            self._fresh_error = error
            self._first_error = self._first_error or error
        finally:
            end.tell()


class _End:
    """The end of one job.  A signal's handler may wait for it also where it has come into such a wait.

    `threading.Event` has a lock that the handler would wait for, and the job's thread too, for ever: the one
    who holds it is the handler's own thread.

    Attributes:
        told: whether the job has ended.
    """

    def __init__(self) -> None:
        self.told = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def tell(self) -> None:
        """Tells that the job has ended."""
        if not self.told:
            self.told = True  # before the lock is free: whoever holds it from then on keeps nobody waiting
            self._lock.release()

    def wait(self) -> None:
        """Waits until it has."""
        while not self.told:
            if self._lock.acquire(timeout=1.0):  # one that was interrupted may have kept it
                self._lock.release()


def await_all(place: str | os.PathLike[str]) -> None:
    """Waits for what any worker of this process is writing into a folder.

    A run that was given up may have left one at work: whoever reads then would find the checkpoint before.
    """
    real = os.path.realpath(place)
    for worker in list(_all):
        worker.await_end(real)


def _message(error: BaseException) -> str:
    return (
        f"a checkpoint could not be written in the background ({type(error).__name__}: {error}); "
        f"training is untouched and the checkpoints before it are whole."
    )
