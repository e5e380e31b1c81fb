"""Timing one call fairly: a warm-up, then the median of several runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Measurement", "best_of", "median_seconds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One row of the benchmark.

    Args:
        stage: what was run.
        parameters: float32 elements it worked on.
        threads: threads it was allowed.
        device: "cpu" or "cuda".
        seconds: median of the runs.
        floor_ratio: seconds over those of one plain read pass of the same bytes (lower is better).
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


def median_seconds(call: Callable[[], object], *, runs: int = 5, limit: float = 5.0) -> float:
    """Median wall seconds of ``call`` after one warm-up; stops early once ``limit`` seconds are spent."""
    call()
    return statistics.median(samples(call, runs, limit))


def best_of(call: Callable[[], object], *, runs: int = 5, limit: float = 5.0) -> float:
    """Smallest wall seconds of ``call`` after one warm-up: the figure for a floor."""
    call()
    return min(samples(call, runs, limit))


def samples(call: Callable[[], object], runs: int, limit: float) -> list[float]:
    """Wall seconds of up to ``runs`` calls; at least one, none started after ``limit`` seconds."""
    taken: list[float] = []
    while len(taken) < runs and (not taken or sum(taken) < limit):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken
