"""One background thread that writes one checkpoint at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from dynaquant_core.errors import SaveError

__all__ = ["Worker"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class Worker(Generic[Result]):
    """Runs one job at a time on a thread of its own; failures come back to the calling thread.

    The thread lives as long as its job and is not a daemon: a program that ends without `close` still
    finishes the write it started.

    Example:
        >>> worker = Worker()
        >>> worker.submit(lambda: "written")
        >>> worker.wait()
        'written'
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._result: Result | None = None
        self._fresh_error: BaseException | None = None
        self._first_error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._thread is not None and self._thread.is_alive()

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
        self._thread = threading.Thread(target=self._run, args=(job,), name="dynaquant-save", daemon=False)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread = None  # there is nothing to wait for
            raise SaveError(
                f"the checkpoint was not written, as no thread could be started for it ({error}); "
                "raise the limit on processes and threads, or save again when fewer are running."
            ) from error

    def wait(self) -> Result | None:
        """Waits for the running job and returns the last good result (None before the first).

        Raises:
            SaveError: a job failed since the last call; chained to its cause.
        """
        self._join()
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
        self._join()
        self._fresh_error = None
        error, self._first_error = self._first_error, None
        if error is not None:
            raise SaveError(_message(error)) from error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, job: Callable[[], Result]) -> None:
        try:
            self._result = job()
        except BaseException as error:  # noqa: BLE001 - carried to the calling thread, never dropped
            logger.error("a save in the background failed: %s", error)
            self._fresh_error = error
            self._first_error = self._first_error or error


def _message(error: BaseException) -> str:
    return (
        f"a checkpoint could not be written in the background ({type(error).__name__}: {error}); "
        f"training is untouched and the checkpoints before it are whole."
    )
