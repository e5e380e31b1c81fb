"""What a rework run's diary comes to in results.json."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.rework import ReworkSection
from dynaquant_core.experiments.config.spelling import resolved
from dynaquant_core.experiments.events import Event, find
from dynaquant_core.experiments.results import STAGES
from dynaquant_core.experiments.rework.interval import mean_interval
from dynaquant_core.experiments.rework.point import point_of

__all__ = ["rework_entry"]


def rework_entry(experiment: Experiment, diary: Sequence[Event]) -> dict[str, Any]:
    """One element of ``runs``: the keys of a trained run, null where they mean nothing here, and its own.

    Args:
        experiment: the run's settings.
        diary: its events, finished.
    """
    final = find(diary, "final")[-1]
    entry = {**_described(experiment, final), **_nothing(), "point": None, "rework": None, "buckets": None}
    if experiment.rework is None:
        told = [{key: event[key] for key in event if key != "event"} for event in find(diary, "buckets")]
        return entry | {"buckets": told}
    repeats = {
        event["repeat"]: event
        for event in find(diary, "repeat")
        if event["digest"] == final["weights_digest"]
    }
    saved = {event["step"]: event for event in find(diary, "saved")}
    losses = {event["step"]: event["loss"] for event in find(diary, "loss")}
    rework = {
        **_settings(experiment.rework),
        **_counted([repeats[number] for number in sorted(repeats)]),
        **_bytes([saved[step] for step in sorted(saved)]),
    }
    rework["seconds"] |= _seconds([saved[step] for step in sorted(saved)], rework["restored"])
    rework["seconds"]["iteration"] = final["seconds"] / experiment.steps
    share = rework["seconds"]["save"] / experiment.checkpoint_every / rework["seconds"]["iteration"]
    return entry | {
        "point": point_of(experiment).as_dict(),
        "rework": rework,
        "overhead": dict.fromkeys(STAGES) | {"encode": share},
        "totals": _totals(list(saved.values())),
        "baseline_curve": [[step, losses[step]] for step in sorted(losses)],
    }


def _described(experiment: Experiment, final: Event) -> dict[str, Any]:
    method, options = resolved(experiment.method)
    return {
        "kind": experiment.kind,
        "method": method,
        "options": options,
        "seed": experiment.seed,
        "threshold": None,
        "interval_steps": experiment.checkpoint_every,
        "steps": experiment.steps,
        "model": experiment.model.name,
        "data": experiment.data.source,
        "moments": None,
        "max_chain": None,
        "parameters": final["parameters"],
        "training_seconds": final["seconds"],
        "training_digest": final["weights_digest"],
        "final": {
            "metric": experiment.evaluate.metric,
            "mode": experiment.evaluate.mode,
            **dict.fromkeys(("value", "baseline", "relative_degradation", "train_loss", "train_baseline")),
            **dict.fromkeys(("train_relative_degradation", "weights_digest", "same_bits")),
        },
    }


def _nothing() -> dict[str, Any]:
    """What a run that is trained has, and this kind has not."""
    return {
        "overhead": dict.fromkeys(STAGES),
        "checkpoints": [],
        "totals": dict.fromkeys(("raw_bytes", "stored_bytes", "ratio", "weights_ratio")),
        "failures": [],
        "restores": [],
        "stale_times_interval": None,
        "curves": [],
        "baseline_curve": [],
    }


def _settings(section: ReworkSection) -> dict[str, Any]:
    names = ("size", "repeats", "order", "most", "flat")
    return {name: getattr(section, name) for name in names}


def _counted(repeats: Sequence[Event]) -> dict[str, Any]:
    iterations = [event["iterations"] for event in repeats]
    found = mean_interval(iterations)
    assert found is not None, "a finished run has all of its repeats, at least one"
    return {
        "failed": [event["failed"] for event in repeats],
        "restored": [event["restored"] for event in repeats],
        "iterations": iterations,
        "given_up": sum(not event["back"] for event in repeats),
        "mean": found.value,
        "low": found.low,
        "high": found.high,
        "seconds": {"rework": statistics.fmean(event["seconds"] for event in repeats)},
    }


def _bytes(saved: Sequence[Event]) -> dict[str, Any]:
    """Of the key, and of each checkpoint after it; means over the latter (of a lone key, the key's own)."""
    deltas = saved[1:] or saved
    mean = statistics.fmean(event["stored_bytes"] for event in deltas)
    return {
        "raw_bytes": saved[0]["raw_bytes"],
        "key_bytes": saved[0]["stored_bytes"],
        "bytes": [event["stored_bytes"] for event in deltas],
        "bytes_mean": mean,
        "share": mean / saved[0]["raw_bytes"],
        "ratio": saved[0]["raw_bytes"] / mean,
    }


def _seconds(saved: Sequence[Event], restored: Sequence[int]) -> dict[str, float]:
    """Of a save, and of decoding all that a restore reads; medians leave out what is compiled once."""
    save, read = (
        statistics.median(event[name] for event in saved[1:] or saved)
        for name in ("save_seconds", "read_seconds")
    )
    links = statistics.fmean(sum(event["step"] <= step for event in saved) for step in restored)
    return {"save": save, "restore": links * read}


def _totals(saved: Sequence[Event]) -> dict[str, Any]:
    raw, stored = (sum(event[name] for event in saved) for name in ("raw_bytes", "stored_bytes"))
    return {"raw_bytes": raw, "stored_bytes": stored, "ratio": raw / stored, "weights_ratio": None}
