"""What a run comes to in a few numbers, and what runs that differ in their seed only come to together."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dynaquant_core.experiments.overhead import overhead_of
from dynaquant_core.experiments.price import Figure, Run, held_label, method_label
from dynaquant_core.experiments.restores import unplanned
from dynaquant_core.experiments.results import STAGES

__all__ = [
    "NUMBERS",
    "WORDS",
    "by_model",
    "by_setting",
    "figures",
    "kind_of",
    "model_label",
    "saving",
    "setting_label",
    "words",
]

#: What names a run, in this order; `words`.
WORDS = (
    "kind", "model", "parameters", "data", "method", "options", "moments", "max_chain", "threshold", "seed",
    "interval_steps", "steps", "failures", "restores", "unplanned", "as_restored", "point", "size",
    "fix", "search", "axis_key", "axis_value", "varied",
)  # fmt: skip

#: Its numbers, in this order; `figures`.
NUMBERS = (
    "ratio_weights", "ratio_state", "ratio_all", "stored_bytes", "checkpoints", "met", "keys", "evaluations",
    "degradation_mean", "degradation_max", "heldout_degradation_mean", "final_value", "final_baseline",
    "final_degradation", "stale_times_interval", "stale_mean", "noise_mean", "er_mean", "unchanged",
    "training_seconds", *(f"{stage}_seconds" for stage in STAGES), "overhead", "restore_rework",
    "rework_mean", "rework_low", "rework_high", "rework_repeats", "checkpoint_bytes", "bins",
    "smaller", "seconds_a_step", "fixed",
)  # fmt: skip

#: Those of a transfer that its seeds share: it compresses once, and what is drawn is the fine-tuning.
SHARED = frozenset(NUMBERS[: NUMBERS.index("final_value")]) | {
    "stale_mean",
    "noise_mean",
    "er_mean",
    "unchanged",
}


def words(run: Run) -> dict[str, Any]:
    """What names a run, by `WORDS`; mappings and what varies as JSON, failures and restores counted."""
    told = {name: run.get(name) for name in WORDS}
    told["options"] = json.dumps(run["options"], sort_keys=True)
    told["point"] = None if run.get("point") is None else json.dumps(run["point"], sort_keys=True)
    told["size"] = (run.get("rework") or {}).get("size")
    told["fix"], told["search"] = (
        json.dumps(run.get(name, usual), sort_keys=True) for name, usual in (("fix", {}), ("search", True))
    )
    told["varied"] = json.dumps(run.get("varied", {}), sort_keys=True)
    if axis := run.get("axis"):
        told |= {"axis_key": axis["key"], "axis_value": json.dumps(axis["value"], sort_keys=True)}
    counts = {name: len(run[name]) for name in ("failures", "restores")}
    return told | counts | {"unplanned": unplanned(run)}


def figures(run: Run) -> dict[str, float | None]:
    """A run's numbers, by `NUMBERS`; None where there is none.

    Ratios are raw over stored bytes of all checkpoints: of the weights, of weights and moments, and of
    everything with the files' own overhead.  Degradations are on the search set, which the threshold is
    about, unless the name says otherwise; infinite where a decoded model's metric was no number, or worse
    than a perfect one.  Seconds are sums over the run, overhead (collector, time held and
    search) is a share of the training time, the rework of restores a mean in intervals.
    """
    entries = run["checkpoints"]
    search, heldout = (
        [_worse(entry["degradation"][part]) for entry in entries] for part in ("search", "heldout")
    )
    lost = {name: _mean(_lost(entries, name)) for name in ("stale", "noise", "er")}
    reworks = _known(restore.get("rework_intervals") for restore in run["restores"])
    final = run["final"]
    numbers: dict[str, float | None] = {
        "ratio_weights": _ratio(entries, ("weight",)),
        "ratio_state": _ratio(entries, ("weight", "moment")),
        "ratio_all": run["totals"]["ratio"],
        "stored_bytes": run["totals"]["stored_bytes"],
        "checkpoints": len(entries),
        "met": sum(entry["met"] for entry in entries),
        "keys": sum(entry["kind"] == "key" for entry in entries),
        "evaluations": sum(entry["evaluations"] or 0 for entry in entries),
        "degradation_mean": _mean(search),
        "degradation_max": max(search, default=None),
        "heldout_degradation_mean": _mean(heldout),
        "final_value": final["value"],
        "final_baseline": final["baseline"],
        "final_degradation": final["relative_degradation"],
        "stale_times_interval": run["stale_times_interval"],
        **{f"{name}_mean": value for name, value in lost.items()},
        "unchanged": _mean(_known(entry["unchanged"] for entry in entries)),
        "training_seconds": run["training_seconds"],
    }
    for stage in STAGES:
        numbers[f"{stage}_seconds"] = sum(entry["seconds"].get(stage, 0.0) for entry in entries)
    trained = kind_of(run) == "train"  # a replay's searches held up no training
    numbers["overhead"] = overhead_of(run).share if trained else None
    numbers["restore_rework"] = _mean(reworks)
    rework = run.get("rework") or {}
    numbers |= {f"rework_{name}": rework.get(name) for name in ("mean", "low", "high", "repeats")}
    numbers["checkpoint_bytes"] = rework.get("bytes_mean")
    binned = run.get("bins", [])
    if binned or run["kind"] in {"rework", "system"}:  # it has no list of checkpoints that could be counted
        counted = ("checkpoints", "met", "keys", "evaluations")
        numbers |= dict.fromkeys((*counted, *(f"{stage}_seconds" for stage in STAGES)))
    if binned:
        numbers |= {"stored_bytes": None, "evaluations": sum(entry["evaluations"] for entry in binned)}
    bins = [entry["bins"] for entry in binned]
    numbers["bins"] = None if None in bins else _mean(bins)
    system = run.get("system") or {}
    numbers |= {name: system.get(name) for name in ("smaller", "seconds_a_step")}
    fix = run.get("fix")
    numbers["fixed"] = sum(_holds(entry["config"] or {}, fix) for entry in entries) if fix else None
    return {name: numbers[name] for name in NUMBERS}


def by_setting(runs: Sequence[Run]) -> list[tuple[Run, list[int], dict[str, Figure | None]]]:
    """For each setting its first run, its seeds, and every number as mean and spread over them.

    Runs that were interrupted stand apart from those that were not.  What seeds share has no spread.
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        named = words(run)
        setting = tuple(named[name] for name in WORDS if name not in {"seed", "restores"})
        groups.setdefault(setting, []).append(run)
    found = []
    for alike in groups.values():
        numbers = [figures(run) for run in alike]
        shared = SHARED if kind_of(alike[0]) == "transfer" else frozenset()
        together = {
            name: Figure.of(each[name] for each in (numbers[:1] if name in shared else numbers))
            for name in NUMBERS
        }
        found.append((alike[0], sorted(run["seed"] for run in alike), together))
    return found


def kind_of(run: Run) -> str:
    """What a run did: its kind, and in an ablation the kind of what is varied.

    Example:
        >>> kind_of({"kind": "ablate", "of": "replay"}), kind_of({"kind": "train"})
        ('replay', 'train')
    """
    return str(run.get("of") or run["kind"])


def saving(runs: Sequence[Run]) -> list[Run]:
    """Those that kept checkpoints to be looked at one by one; other kinds have sections of their own."""
    return [run for run in runs if run["checkpoints"]]


def by_model(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by what was trained, `model_label`, both in their order."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(model_label(run), []).append(run)
    return groups


def model_label(run: Run) -> str:
    """A model's name and size.

    Example:
        >>> model_label({"model": "resnet", "parameters": 304_810})
        'resnet 0.3M'
    """
    count = run["parameters"]
    return f"{run['model']} {count / 1e6:.1f}M" if count >= 1e5 else f"{run['model']} {count / 1e3:.0f}k"


def setting_label(run: Run) -> str:
    """A method's name and options, what tells its run from others, and moments that are not usual."""
    label = method_label(run) + held_label(run)
    return label if run["moments"] in {"8bit", None} else f"{label}, moments {run['moments']}"


def _ratio(entries: Sequence[Mapping[str, Any]], roles: Sequence[str]) -> float | None:
    parts = [entry["parts"][role] for entry in entries for role in roles if role in entry["parts"]]
    stored = sum(part["stored_bytes"] for part in parts)
    return sum(part["raw_bytes"] for part in parts) / stored if stored else None


def _holds(config: Mapping[str, Any], fix: Mapping[str, Any]) -> bool:
    """Whether a point is where ``fix`` left its axes; words (a metric of pruning) may mean nothing there."""
    exact = "exact" in config.values() or config.get("exact") is True
    return not exact and all(
        config.get(name) == value for name, value in fix.items() if not isinstance(value, str)
    )


def _lost(entries: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return _known((entry["movement_lost"] or {}).get(name) for entry in entries)


def _worse(degradation: float | None) -> float:
    """As it was before it was written: JSON has no infinity, and no other number is null."""
    return math.inf if degradation is None else degradation


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
