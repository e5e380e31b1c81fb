"""How long a save holds the training thread: ours and the framework's own in turns, in one process."""

from __future__ import annotations

import statistics
from dataclasses import replace
from importlib import import_module
from typing import Any

from job import Job

#: Trainings are short, and long enough between two saves that none waits for the one before.
SHORT = {"steps": 48, "every": 12, "batch": 2, "search_tokens": 2048, "keep": 0}


def held(framework: str, base: Job, rounds: int) -> dict[str, Any]:
    """Medians of the saves of several trainings.

    The first training of each kind is left out, and of each other one the first save: ours is a key then, and
    what it works in is fresh.  No candidate is measured; what a search takes is told apart.

    Args:
        framework: whose.
        base: folder, size and threads.
        rounds: trainings of each kind; of each count three saves.
    """
    train = import_module(f"of_{framework}").train
    base = replace(base, **SHORT)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    told: list[dict[str, Any]] = []
    for turn in range(rounds + 1):
        for ours in (False, True):
            found = train(replace(base, ours=ours, search=False, folder=f"{base.folder}/{turn}-{ours}"))
            if turn:
                seconds[ours] += found["held"][1:]
                told += found["checkpoints"][1:]
    native, ours_ = (statistics.median(seconds[which]) for which in (False, True))
    searched = train(replace(base, ours=True, folder=f"{base.folder}/searched"))["checkpoints"]
    searches = [f"{one['seconds']['search']:.2f} s of {one['evaluations']}" for one in searched]
    return {
        "parameters": found["parameters"],
        "saves": " + ".join(str(len(each)) for each in seconds.values()),
        "native": _span(seconds[False]),
        "ours": _span(seconds[True]),
        "ours / native": round(ours_ / native, 2),
        "stages": {name: _middle(told, name) for name in told[0]["seconds"]},
        "first search": searches[0],
        "later searches": searches[1:],
    }


def _span(seconds: list[float]) -> str:
    """Median, and from where to where, in milliseconds."""
    low, middle, high = (1000 * pick(seconds) for pick in (min, statistics.median, max))
    return f"{middle:.1f} ms ({low:.1f} to {high:.1f})"


def _middle(checkpoints: list[dict[str, Any]], stage: str) -> str:
    return f"{1000 * statistics.median(one['seconds'].get(stage, 0.0) for one in checkpoints):.1f} ms"
