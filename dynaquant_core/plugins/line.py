"""Jobs in the background, one after the other, in the order in which they were given."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

from dynaquant_core.errors import SaveError
from dynaquant_core.threads import in_background

__all__ = ["Line"]

logger = logging.getLogger(__name__)

#: Every one of this process.
_all: weakref.WeakSet[Line] = weakref.WeakSet()


def _nothing() -> None:
    return


class Line:
    """Runs jobs on one thread of its own; the first failure comes back to the calling thread.

    After a failure everything that waits is dropped: a removal that was asked for because a newer checkpoint
    was on its way must not happen when that one never came.  The thread ends when nothing waits and is not a
    daemon: a program that ends without waiting still finishes its writes.  In a forked child, which has no
    such thread, nothing runs or waits.

    Example:
        >>> line, done = Line(), []
        >>> for number in range(3):
        ...     line.put("append", lambda number=number: done.append(number))
        >>> line.wait(); done
        [0, 1, 2]
    """

    def __init__(self) -> None:
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._guard = threading.Condition()
        self._waiting: deque[tuple[str, Callable[[], object], Callable[[], None]]] = deque()
        self._running = False
        self._error: BaseException | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits, and no failure is still to be told."""
        with self._guard:
            return not self._running and self._error is None

    def put(self, what: str, job: Callable[[], object], ended: Callable[[], None] = _nothing) -> None:
        """Adds a job and returns; ``what`` says in the log what was dropped.

        ``ended`` is called once the job is done, has failed or is dropped.

        Raises:
            SaveError: the system gives no thread; the job is dropped.
        """
        with self._guard:
            if self._error is not None:
                self._drop(what, ended)
                return
            self._waiting.append((what, job, ended))
            if self._running:
                return
            self._running = True
        try:
            in_background(self._work, "dynaquant-save", self._give_up)
        except RuntimeError as error:
            raise SaveError(
                f"{what} was not done, as no thread could be started for it ({error}); raise the limit on "
                "processes and threads."
            ) from error

    def join(self) -> None:
        """Waits until nothing runs or waits; failures stay to be told."""
        with self._guard:
            self._guard.wait_for(lambda: not self._running)

    def check(self) -> None:
        """Raises SaveError, once, if a job has failed; never waits."""
        with self._guard:
            error, self._error = self._error, None
        if error is not None:
            raise SaveError(
                f"a checkpoint could not be written in the background ({type(error).__name__}: {error}); "
                "training is untouched and the checkpoints before it are whole."
            ) from error

    def wait(self) -> None:
        """`join`, then `check`."""
        self.join()
        self.check()

    def _give_up(self) -> None:
        with self._guard:
            self._running = False
            for *_, ended in self._waiting:
                ended()
            self._waiting.clear()
            self._guard.notify_all()

    def _work(self) -> None:
        while True:
            with self._guard:
                if not self._waiting:
                    self._running = False
                    self._guard.notify_all()
                    return
                what, job, ended = self._waiting.popleft()
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - carried to the calling thread, never dropped
                logger.error("%s failed in the background: %s", what, error)
                self._fail(error)
            finally:
                del job  # it may hold codes as large as the model
                ended()

    def _fail(self, error: BaseException) -> None:
        with self._guard:
            self._error = error
            for what, _, ended in self._waiting:
                self._drop(what, ended)
            self._waiting.clear()

    def _drop(self, what: str, ended: Callable[[], None]) -> None:
        logger.warning("not done, as a save before it failed: %s", what)
        ended()


def _begin_in_child() -> None:
    """The jobs are the parent's; its locks may have been forked in a locked state."""
    for line in _all:
        line._begin()


os.register_at_fork(after_in_child=_begin_in_child)
