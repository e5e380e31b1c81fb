"""Saves one after the other, also where a signal's handler asks for one in the middle of another.

While a search runs, the model holds the candidate that is being measured.  A handler (a cluster's warning, a
user's own) that saved right then would save that candidate, which may be one that the search is to reject.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dynaquant_core.errors import SaveError

__all__ = ["Turns"]

logger = logging.getLogger(__name__)


class Turns:
    """Whose turn it is.

    Attributes:
        busy: whether a save is under way further up the stack.

    Example:
        >>> turns, done = Turns(), []
        >>> def outer():
        ...     turns.take(lambda: done.append("inner"))
        ...     done.append("outer")
        >>> turns.take(outer)
        >>> done
        ['outer', 'inner']
    """

    def __init__(self) -> None:
        self.busy = False
        self._postponed: deque[Callable[[], object]] = deque()

    def take(self, save: Callable[[], object]) -> None:
        """Runs ``save`` now, or when the one that is under way has ended, however it ends."""
        if self.busy:
            logger.info("a save was asked for in the middle of another and follows it")
            self._postponed.append(save)
            return
        try:
            with self.held():
                save()
        finally:
            if self._postponed:
                self.take(self._postponed.popleft())

    def require_none(self) -> None:
        """Refuses a restore where a save, or another restore, is under way.

        Raises:
            SaveError: one is.
        """
        if self.busy:
            raise SaveError(
                "restore() was called in the middle of a save or of another restore(), as by a signal's "
                "handler; call it when that has ended."
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps saves waiting; the next `take` makes up for them."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False
