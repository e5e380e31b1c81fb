"""When a save is due: every so many optimizer steps, or every so much time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from dynaquant_core.errors import ConfigError

__all__ = ["Schedule", "StepSchedule", "TimeSchedule", "parse_every"]

#: Seconds in each unit of time that `parse_every` reads.
UNITS = {
    "s": 1, "sec": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600,
    "d": 86400, "day": 86400, "days": 86400,
}  # fmt: skip

#: Share by which a predicted time window is widened, so that a run that speeds up does not miss its start.
TIME_MARGIN = 1.25

#: Weight of the newest step in the mean duration of a step.
STEP_WEIGHT = 0.1


class Schedule(Protocol):
    """Answers, after each optimizer step, whether to save and how many steps are left until then."""

    def advance(self, step: int) -> None:
        """Tells that ``step`` optimizer steps are complete."""
        ...

    def saved(self, step: int) -> None:
        """Tells that the state after ``step`` steps was saved or restored."""
        ...

    def due(self) -> bool:
        """Whether the state is to be saved now."""
        ...

    def steps_left(self) -> float:
        """Optimizer steps until a save is due: exact for steps, an estimate (or inf) for time."""
        ...


class StepSchedule:
    """Due at every multiple of ``every`` steps, so that a resumed run keeps the same rhythm.

    Args:
        every: optimizer steps between two saves, at least 1.

    Example:
        >>> schedule = StepSchedule(10)
        >>> schedule.advance(8)
        >>> schedule.due(), schedule.steps_left()
        (False, 2)
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self._step = 0
        self._saved = 0

    def advance(self, step: int) -> None:
        """Tells that ``step`` optimizer steps are complete."""
        self._step = step

    def saved(self, step: int) -> None:
        """Tells that the state after ``step`` steps was saved or restored."""
        self._step = self._saved = step

    def due(self) -> bool:
        """Whether a multiple of ``every`` was reached since the last save (one that was missed counts)."""
        return self._step // self.every > self._saved // self.every

    def steps_left(self) -> int:
        """Optimizer steps until the next multiple of ``every``; 0 when due."""
        return 0 if self.due() else self.every - self._step % self.every


class TimeSchedule:
    """Due when ``seconds`` have passed since the last save.

    Args:
        seconds: time between two saves.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._last_save = self._last_step = clock()
        self._pace: float | None = None  # mean seconds a step

    def advance(self, step: int) -> None:  # noqa: ARG002 - one protocol for both schedules
        """Tells that another optimizer step is complete; its duration goes into the mean."""
        now = self._clock()
        took, self._last_step = now - self._last_step, now
        self._pace = took if self._pace is None else self._pace + STEP_WEIGHT * (took - self._pace)

    def saved(self, step: int) -> None:  # noqa: ARG002
        """Starts the next interval now; the time of the save itself is not counted as a step's."""
        self._last_save = self._last_step = self._clock()

    def due(self) -> bool:
        """Whether the interval has passed."""
        return self._clock() - self._last_save >= self.seconds

    def steps_left(self) -> float:
        """Estimated steps until a save is due, on the low side; inf before the first step was timed."""
        left = max(self.seconds - (self._clock() - self._last_save), 0.0)
        if self._pace is None:
            return float("inf")
        return left / max(self._pace, 1e-9) / TIME_MARGIN


def parse_every(every: int | str) -> Schedule:
    """Reads ``every`` of the Checkpointer: a number of steps, or a time such as ``"30min"`` or ``"1.5 h"``.

    Raises:
        ConfigError: neither a whole number of at least 1 nor a positive time with a unit.

    Example:
        >>> parse_every("30min").seconds
        1800.0
    """
    if isinstance(every, (int, np.integer)) and not isinstance(every, bool) and every >= 1:
        return StepSchedule(int(every))
    seconds = _seconds(every) if isinstance(every, str) else 0.0
    if seconds <= 0:
        raise ConfigError(
            f"every must be a number of optimizer steps of at least 1, or a time such as '30min', '90s' or "
            f"'2h', got {every!r}."
        )
    return TimeSchedule(seconds)


def _seconds(text: str) -> float:
    """The length of a time such as "30min" in seconds; 0 where it is not one."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text.lower())
    if found is None or found[2] not in UNITS:
        return 0.0
    return float(found[1]) * UNITS[found[2]]
