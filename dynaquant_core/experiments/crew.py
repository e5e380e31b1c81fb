"""Work in an order that its parts ask for, several parts at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dynaquant_core.errors import DynaQuantError, StorageError
from dynaquant_core.experiments.children import Children

__all__ = ["Task", "run_tasks"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task:
    """One part of the work.

    Args:
        name: of this part.
        work: does it; may raise.
        needs: names of the parts that have to be done before.
        after: names of the parts that should be done before, and need not: of one that fails the end is
            waited for as well.
    """

    name: str
    work: Callable[[], Any]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def run_tasks(tasks: Sequence[Task], jobs: int, done: Callable[[str, Any], None], children: Children) -> None:
    """Does every task once, those first in the list first, at most ``jobs`` at a time.

    After an error, the system's refusals among them, whatever does not need the part that failed goes on, and
    then the error is raised: one bad row must not cost a night.  So it does where ``done`` fails, which gets
    the next result all the same.  An interrupt ends everything at once.

    Args:
        tasks: what to do; needs and after name others of them, without a circle.
        jobs: threads, each of which waits for a process most of the time.
        done: takes name and result of each task, on the calling thread.
        children: processes that the tasks began.

    Raises:
        DynaQuantError: the first one of a task or of ``done``; where there are more, or something goes on,
            each is logged when it comes.  What the system refused is a StorageError.

    Example:
        >>> found = []
        >>> late = Task("late", lambda: 1, needs=("early",))
        >>> with Children() as children:
        ...     run_tasks([late, Task("early", lambda: 2)], 2, lambda *pair: found.append(pair), children)
        >>> found
        [('early', 2), ('late', 1)]
    """
    crew = _Crew(list(tasks))
    with ThreadPoolExecutor(jobs, "experiment") as pool:
        try:
            while crew.go_on(pool, jobs):
                for name, result in crew.next_done():
                    with crew.going_on():
                        done(name, result)
        except BaseException:
            children.stop()
            raise
    if crew.problems:
        crew.tell_what_is_missing()
        raise crew.problems[0]


class _Crew:
    """What waits, what runs, what is done, and what went wrong."""

    def __init__(self, waiting: list[Task]) -> None:
        self.problems: list[DynaQuantError] = []
        self._waiting = waiting
        self._running: dict[Future[Any], str] = {}
        self._done: set[str] = set()
        self._ended: set[str] = set()

    def go_on(self, pool: ThreadPoolExecutor, jobs: int) -> bool:
        """Begins what can begin; whether anything is at work."""
        ready = [
            task
            for task in self._waiting
            if self._done.issuperset(task.needs) and self._ended.issuperset(task.after)
        ]
        for task in ready[: jobs - len(self._running)]:
            self._waiting.remove(task)
            self._running[pool.submit(task.work)] = task.name
        return bool(self._running)

    def next_done(self) -> list[tuple[str, Any]]:
        """Waits for at least one part; names and results of those that went well."""
        ended, _ = wait(self._running, return_when=FIRST_COMPLETED)
        found = []
        for future in ended:
            name = self._running.pop(future)
            self._ended.add(name)
            with self.going_on():
                found.append((name, future.result()))
                self._done.add(name)
        return found

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """An error of the block is kept for later."""
        try:
            yield
        except (DynaQuantError, OSError) as error:
            problem = error if isinstance(error, DynaQuantError) else _refused(error)
            if self._running or self._waiting or self.problems:  # else it is the one that is raised
                logger.warning("%s", problem)
            self.problems.append(problem)

    def tell_what_is_missing(self) -> None:
        """After errors: how much of the work has no result, where one of the errors does not say it all."""
        if len(self.problems) > 1 or self._waiting:
            logger.warning(
                "parts that failed: %d; that need them and were not begun: %d; the same command "
                "repeats these alone",
                len(self.problems),
                len(self._waiting),
            )


def _refused(error: OSError) -> StorageError:
    """What the system refused, wherever that was; mostly there is no room, or too many files are open."""
    found = StorageError(
        f"the system refused what an experiment needs ({error}); mend that and run it again."
    )
    found.__cause__ = error
    return found
