"""Timing one call fairly: a warm-up, then the median of several runs."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Call", "Measurement", "median_seconds", "side_by_side"]

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One row of the benchmark.

    Args:
        stage: what was run.
        parameters: float32 elements it worked on.
        threads: threads it was allowed.
        device: "cpu" or "cuda".
        seconds: median of the runs.
        floor_ratio: seconds over those of one plain read pass of the same bytes, taken in turns (lower
            is better).
        against: the alternative, by name; "" where there is none.
        speedup: the alternative's seconds over ours (higher is better).
        megabytes_per_second: input bytes over seconds, in 10^6 bytes.
        note: anything a reader of the row must know.
    """

    stage: str
    parameters: int
    threads: int
    device: str
    seconds: float
    floor_ratio: float | None = None
    against: str = ""
    speedup: float | None = None
    megabytes_per_second: float | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON-ready data."""
        return asdict(self)


def side_by_side(
    calls: Mapping[str, Callable[[], object]], *, runs: int = 7, limit: float = 20.0, fresh: bool = False
) -> dict[str, float]:
    """Median wall seconds of each call, taken in turns, so that all see the same moods of the machine.

    Args:
        calls: by name; each is called once before anything is timed.
        runs: rounds, at least one; none is begun after ``limit`` seconds.
        limit: seconds.
        fresh: hand free memory back to the system before each call, as it is when a process has just begun:
            what is first touched must then be cleared by the system first.
    """
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    begun = time.perf_counter()
    for _ in range(runs):
        for name, call in calls.items():
            if fresh:
                ctypes.CDLL(None).malloc_trim(0)
            start = time.perf_counter()
            result = call()
            taken[name].append(time.perf_counter() - start)
            del result  # given back outside the time
        if time.perf_counter() - begun > limit:
            break
    return {name: statistics.median(times) for name, times in taken.items()}


def median_seconds(call: Callable[[], object], *, runs: int = 5, limit: float = 5.0) -> float:
    """Median wall seconds of ``call`` after one warm-up; stops early once ``limit`` seconds are spent."""
    call()
    return statistics.median(samples(call, runs, limit))


def samples(call: Callable[[], object], runs: int, limit: float) -> list[float]:
    """Wall seconds of up to ``runs`` calls; at least one, none started after ``limit`` seconds."""
    taken: list[float] = []
    while len(taken) < runs and (not taken or sum(taken) < limit):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken
