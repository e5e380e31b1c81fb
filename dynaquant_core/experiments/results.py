"""results.json: what a run's diary says, in the fixed keys (docs/experiments.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from dynaquant_core.experiments.baseline import Baseline
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.events import Event, find
from dynaquant_core.methods.registry import resolve_method

__all__ = ["FORMAT", "STAGES", "Results", "restores_of", "run_entry"]

FORMAT = 1

#: The stages of a save whose share of training time is reported (CheckpointInfo.seconds).
STAGES = ("collector", "held", "search", "draft", "encode", "commit")


@dataclass(frozen=True, slots=True)
class Results:
    """What an experiment wrote.

    Args:
        path: the file results.json.
        data: its content.
    """

    path: Path
    data: dict[str, Any]


def run_entry(experiment: Experiment, diary: Sequence[Event], baseline: Baseline) -> dict[str, Any]:
    """One element of ``runs``.

    Args:
        experiment: the run's settings.
        diary: its events, finished.
        baseline: the uninterrupted run.
    """
    method = resolve_method(experiment.method)
    checkpoints = [
        {key: event[key] for key in event if key != "event"} for event in find(diary, "checkpoint")
    ]
    seconds = training_seconds(diary)
    return {
        "kind": experiment.kind,
        "method": method.name,
        "options": method.options(),
        "seed": experiment.seed,
        "threshold": experiment.threshold,
        "interval_steps": experiment.checkpoint_every,
        "failures": [event["step"] for event in find(diary, "killed")],
        "restores": _restore_entries(experiment, diary, baseline),
        "overhead": _overhead(checkpoints, seconds),
        "checkpoints": checkpoints,
        "totals": _totals(checkpoints),
        "final": _final(experiment, find(diary, "final")[-1]["value"], baseline.final),
        "training_seconds": seconds,
        "curves": [
            [[event["step"], event["loss"]] for event in find(life, "loss")] for life in _lives(diary)
        ],
        "baseline_curve": [list(point) for point in baseline.curve],
    }


def restores_of(diary: Sequence[Event]) -> list[dict[str, int]]:
    """``{"failed_step", "restored_step"}`` of every start after the first; unplanned ones included."""
    lives = _lives(diary)
    return [
        {"failed_step": _last_step(before), "restored_step": life[0]["restored"]}
        for before, life in pairwise(lives)
    ]


def training_seconds(diary: Sequence[Event]) -> float:
    """Time all processes of a run spent in training steps, replayed ones included."""
    return sum(max((event["seconds"] for event in find(life, "loss")), default=0.0) for life in _lives(diary))


def _lives(diary: Sequence[Event]) -> list[list[Event]]:
    """The diary cut at each start of a process."""
    lives: list[list[Event]] = []
    for event in diary:
        if event["event"] == "start":
            lives.append([])
        if lives:
            lives[-1].append(event)
    return lives


def _last_step(life: Sequence[Event]) -> int:
    return max((int(event["step"]) for event in life if "step" in event), default=int(life[0]["restored"]))


def _restore_entries(
    experiment: Experiment, diary: Sequence[Event], baseline: Baseline
) -> list[dict[str, Any]]:
    entries = []
    for restore, life in zip(restores_of(diary), _lives(diary)[1:], strict=True):
        steps = rework(life, experiment, baseline)
        intervals = None if steps is None else steps / experiment.checkpoint_every
        entries.append({**restore, "rework_steps": steps, "rework_intervals": intervals})
    return entries


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


def _overhead(checkpoints: Sequence[dict[str, Any]], seconds: float) -> dict[str, float]:
    spent = {stage: sum(entry["seconds"].get(stage, 0.0) for entry in checkpoints) for stage in STAGES}
    return {stage: total / seconds if seconds else 0.0 for stage, total in spent.items()}


def _totals(checkpoints: Sequence[dict[str, Any]]) -> dict[str, Any]:
    raw = sum(entry["raw_bytes"] for entry in checkpoints)
    stored = sum(entry["stored_bytes"] for entry in checkpoints)
    weights = [entry["parts"]["weight"] for entry in checkpoints if "weight" in entry["parts"]]
    weights_raw = sum(part["raw_bytes"] for part in weights)
    weights_stored = sum(part["stored_bytes"] for part in weights)
    return {
        "raw_bytes": raw,
        "stored_bytes": stored,
        "ratio": raw / stored if stored else None,
        "weights_ratio": weights_raw / weights_stored if weights_stored else None,
    }


def _final(experiment: Experiment, value: float, baseline: float) -> dict[str, Any]:
    mode = experiment.evaluate.mode
    worse = value - baseline if mode == "min" else baseline - value
    return {
        "metric": experiment.evaluate.metric,
        "mode": mode,
        "value": value,
        "baseline": baseline,
        "relative_degradation": worse / abs(baseline) if baseline else (0.0 if worse == 0 else None),
    }
