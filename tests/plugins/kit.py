"""Runs, states and folders that the tests of this room share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dynaquant_core.plugins import MARKER, PluginOptions, PluginRun, read_tree
from dynaquant_core.plugins.line import Line
from tests.store.kit import is_same, small_state

__all__ = [
    "EXACT",
    "Gauge",
    "checkpoint",
    "clutter",
    "exact_run",
    "is_same",
    "names_in",
    "one_thread",
    "slow_disk",
    "small_state",
    "state",
    "unwell",
]

#: Nothing is rounded, so that what comes back can be compared bit for bit.
EXACT: dict[str, Any] = {"exact": ("*",), "moments": "exact"}


class Gauge:
    """An object of a class that a DynaQuant tree cannot hold."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gauge) and other.value == self.value

    __hash__ = None


def exact_run(**options: Any) -> PluginRun:
    """A run that keeps every bit, of deltas."""
    return PluginRun(PluginOptions(**{"method": "exact", "moments": "exact", **options}), framework="none")


def state(step: int, seed: int = 0) -> dict[str, Any]:
    """A training state with objects of foreign classes in it."""
    return {**small_state(step, seed), "gauges": [Gauge(step), {"nested": (Gauge(seed), step)}]}


def checkpoint(folder: Path) -> Any:
    """What is in a checkpoint's folder."""
    return read_tree(folder, weights_only=False)


def names_in(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def clutter(folder: Path) -> list[str]:
    """What lies in a checkpoint's folder that belongs to no whole checkpoint."""
    known = {MARKER, "rest.pt", "rest-1.pt"}
    return [name for name in names_in(folder) if name not in known and not name.endswith(".dq")]


def one_thread() -> None:
    """For programs that fork."""
    torch.set_num_threads(1)


def slow_disk(seconds: float) -> None:
    """From now on every job in the background of this process begins late."""
    put = Line.put
    Line.put = lambda self, what, job, *ended: put(self, what, lambda: (time.sleep(seconds), job()), *ended)


def unwell(rank: int, left: Path) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    """Two measures that rank 1 cannot take: it fails, and it does not answer until ``left`` is there."""

    def fails(_: Any) -> float:
        if rank == 1:
            raise ValueError("rank one cannot")
        return 1.0

    def stays_away(_: Any) -> float:
        last = time.monotonic() + 60
        while rank == 1 and not left.exists() and time.monotonic() < last:
            time.sleep(0.05)
        return 1.0

    return fails, stays_away
