"""What the restores of a run were, and what they cost: rework at once, and movement that is lost for good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from dynaquant_core.experiments.baseline import Baseline
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.events import Event, find

__all__ = ["lives_of", "lost_training", "restore_entries", "restored", "restores_of", "rework", "unplanned"]


def lives_of(diary: Sequence[Event]) -> list[list[Event]]:
    """The diary cut at each start: of a process, or anew in the same one."""
    lives: list[list[Event]] = []
    for event in diary:
        if event["event"] == "start":
            lives.append([])
        if lives:
            lives[-1].append(event)
    return lives


def restores_of(diary: Sequence[Event]) -> list[dict[str, int]]:
    """``{"failed_step", "restored_step"}`` of every start after the first; unplanned ones included."""
    lives = lives_of(diary)
    return [
        {"failed_step": _last_step(before), "restored_step": life[0]["restored"]}
        for before, life in pairwise(lives)
    ]


def restore_entries(
    experiment: Experiment, diary: Sequence[Event], baseline: Baseline
) -> list[dict[str, Any]]:
    """One element of ``restores`` for every start of a run after its first.

    Args:
        experiment: the run's settings.
        diary: its events.
        baseline: the uninterrupted run.
    """
    entries, lives = [], lives_of(diary)
    saved: dict[int, Event] = {}  # step -> its newest checkpoint so far
    for restore, before, life in zip(restores_of(diary), lives, lives[1:], strict=False):
        saved |= {event["step"]: event for event in find(before, "checkpoint")}
        steps = rework(life, experiment, baseline)
        step = restore["restored_step"]
        entries.append(
            {
                **restore,
                "rework_steps": steps,
                "rework_intervals": None if steps is None else steps / experiment.checkpoint_every,
                "movement_lost": saved[step]["movement_lost"] if step in saved else None,
                "span": max(0, step - before[0]["restored"]) / experiment.steps,
            }
        )
    return entries


def lost_training(restores: Sequence[Mapping[str, Any]]) -> float | None:
    """Sum over restores of stale x interval, a share of the training: what the law of restores is about.

    The interval is that over which the movement was made of which stale is a share: from the restore before
    (or the start) to the checkpoint restored from.  None where a checkpoint's stale is not known.

    Example:
        >>> lost_training([{"span": 0.1, "movement_lost": {"stale": 0.5}}])
        0.05
        >>> lost_training([{"span": 0.1, "movement_lost": None}]) is None
        True
    """
    total = 0.0
    for restore in restores:
        if restore["span"]:
            stale = (restore["movement_lost"] or {}).get("stale")
            if stale is None:
                return None
            total += stale * restore["span"]
    return total


def restored(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Restores of an entry of results.json that went on from a checkpoint; the others began anew.

    Example:
        >>> restored({"restores": [{"restored_step": 0}, {"restored_step": 10}]})
        [{'restored_step': 10}]
    """
    return [restore for restore in run["restores"] if restore["restored_step"] > 0]


def unplanned(run: Mapping[str, Any]) -> int:
    """How many of them no failure was planned for: the command or a process was killed, and the run resumed.

    Example:
        >>> unplanned({"failures": [15], "restores": [{"restored_step": 10}, {"restored_step": 20}]})
        1
    """
    return max(0, len(restored(run)) - len(run["failures"]))


def rework(life: Sequence[Event], experiment: Experiment, baseline: Baseline) -> int | None:
    """Optimizer steps after a restore until the search metric is back at the uninterrupted run's value there.

    Measured every interval / 10 steps on a small part of the search set; one interval where it does not come
    back within one; None where the uninterrupted run has no value there (a restart from nothing), or where
    the next failure came first.

    Args:
        life: events from one start on.
        experiment: the run's settings.
        baseline: the uninterrupted run.
    """
    start, interval = life[0]["restored"], experiment.checkpoint_every
    target = baseline.parts.get(start)
    if target is None:
        return None
    probes = [(event["step"] - start, event["value"]) for event in find(life, "probe")]
    good = [steps for steps, value in probes if _as_good(value, target, experiment.evaluate.mode)]
    if good:
        return int(min(good))
    longest = max((steps for steps, _ in probes), default=0)
    return interval if longest + max(1, interval // 10) > interval else None


def _as_good(value: float, target: float, mode: Literal["min", "max"]) -> bool:
    return value <= target if mode == "min" else value >= target


def _last_step(life: Sequence[Event]) -> int:
    return max((int(event["step"]) for event in life if "step" in event), default=int(life[0]["restored"]))
