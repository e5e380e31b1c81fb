"""Seconds that one save may spend on something, whoever spends them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Allowance"]


class Allowance:
    """Seconds to be shared by all candidates of a save, on all threads.

    Args:
        seconds: in all; the time of threads that work at once is added up.
        over: called once, when they are used up.

    Example:
        >>> never = Allowance(0.0, lambda: print("used up"))
        >>> go_on = never.timer()
        >>> go_on(), go_on()
        used up
        (False, False)
    """

    def __init__(self, seconds: float, over: Callable[[], None]) -> None:
        self._left, self._over, self._told = seconds, over, False
        self._lock = threading.Lock()

    def timer(self) -> Callable[[], bool]:
        """A question for the calling thread, whether any time is left.

        Each call charges what passed since the one before; the first, since the timer was made.
        """
        last = time.perf_counter()

        def go_on() -> bool:
            nonlocal last
            now = time.perf_counter()
            seconds, last = now - last, now
            return self._charge(seconds)

        return go_on

    def _charge(self, seconds: float) -> bool:
        with self._lock:
            self._left -= seconds
            tell = self._left <= 0 and not self._told
            self._told = self._told or tell
        if tell:
            self._over()
        return self._left > 0
