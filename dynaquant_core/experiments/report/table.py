"""Tables of an experiment: a row a run, a row a checkpoint; every cell is text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dynaquant_core.experiments.figures import by_model, figures, kind_of, model_label, setting_label
from dynaquant_core.experiments.overhead import overhead_of
from dynaquant_core.experiments.price import kills_label
from dynaquant_core.experiments.restores import unplanned
from dynaquant_core.experiments.results import STAGES, Results

__all__ = ["Row", "checkpoint_rows", "number", "percent", "restore_rows", "size", "spent", "summary", "times"]

#: Column title -> cell.
Row = dict[str, str]


def summary(results: Results) -> list[Row]:
    """A row for each run: what was saved, and what it cost in the end; the model where there are several.

    Example:
        >>> from pathlib import Path
        >>> summary(Results(Path("results.json"), {"runs": []}))
        []
    """
    rows = {
        "train": _trained_row,
        "replay": _replayed_row,
        "transfer": _transferred_row,
        "rework": _rework_row,
        "system": _system_row,
    }
    runs = results.data["runs"]
    several = len(by_model(runs)) > 1
    return [
        ({"model": model_label(run)} if several else {}) | rows[kind_of(run)](index, run)
        for index, run in enumerate(runs)
    ]


def _trained_row(index: int, run: Mapping[str, Any]) -> Row:
    final = run["final"]
    return {
        "run": str(index + 1),
        "method": setting_label(run),
        "seed": str(run["seed"]),
        "threshold": percent(run["threshold"]),
        "kills": kills_label(len(run["failures"]), unplanned(run)),
        **_stored(run),
        f"final {final['metric']}": f"{final['value']:.4f}",
        "uninterrupted": f"{final['baseline']:.4f}",
        "degradation": percent(final["relative_degradation"], signed=True),
        "overhead": percent(overhead_of(run).share),
    }


def _replayed_row(index: int, run: Mapping[str, Any]) -> Row:
    numbers = figures(run)
    named = {
        "run": str(index + 1),
        "method": setting_label(run),
        "seed": str(run["seed"]),
        "threshold": percent(run["threshold"]),
    }
    if run.get("measure") == "bins":  # nothing was stored
        return named | {"bins": number(numbers["bins"], digits=1)}
    return {
        **named,
        **_stored(run),
        "degradation": percent(numbers["degradation_mean"], signed=True),
        "worst": percent(numbers["degradation_max"], signed=True),
        "unchanged": percent(numbers["unchanged"]),
        "stale": number(numbers["stale_mean"]),
        "noise": number(numbers["noise_mean"]),
        "seconds": number(spent(numbers), digits=1),
    }


def _rework_row(index: int, run: Mapping[str, Any]) -> Row:
    told = {"model": run["model"], "method": setting_label(run), "seed": str(run["seed"])}
    named = {"run": str(index + 1), **told}
    rework = run["rework"]
    if rework is None:
        return named | {"changes": str(len(run["buckets"]))}
    interval = "" if rework["low"] is None else f" ({rework['low']:.2f} to {rework['high']:.2f})"
    return named | {
        "point": configuration(run["point"]),
        "every": str(run["interval_steps"]),
        "repeats": str(rework["repeats"]),
        "rework": f"{rework['mean']:.2f}{interval}",
        "stored": size(rework["bytes_mean"]),
        "ratio": times(rework["ratio"]),
    }


def _system_row(index: int, run: Mapping[str, Any]) -> Row:
    final, system = run["final"], run["system"]
    ended = system["diverged_after"]
    return {
        "run": str(index + 1),
        "system": setting_label(run),
        "seed": str(run["seed"]),
        f"final {final['metric']}": number(final["value"], digits=4)
        if ended is None
        else f"none: diverged after {ended}",
        "without": number(final["baseline"], digits=4),
        "degradation": percent(final["relative_degradation"], signed=True),
        "smaller": times(system["smaller"]),
        "seconds a step": number(system["seconds_a_step"], digits=4),
    }


def _transferred_row(index: int, run: Mapping[str, Any]) -> Row:
    final, (entry,) = run["final"], run["checkpoints"]
    decoded = entry["quality"]["search"]  # null: no number
    return {
        "run": str(index + 1),
        "method": setting_label(run),
        "seed": str(run["seed"]),
        "threshold": percent(run["threshold"]),
        **_stored(run),
        f"pre-trained {run['pretrained']['metric']}": number(entry["quality"]["reference"], digits=4),
        "as decoded": number(math.nan if decoded is None else decoded, digits=4),
        f"final {final['metric']}": f"{final['value']:.4f}",
        "uncompressed": f"{final['baseline']:.4f}",
        "degradation": percent(final["relative_degradation"], signed=True),
    }


def _stored(run: Mapping[str, Any]) -> Row:
    checkpoints, totals = run["checkpoints"], run["totals"]
    return {
        "threshold met": f"{sum(entry['met'] for entry in checkpoints)} of {len(checkpoints)}",
        "raw": size(totals["raw_bytes"]),
        "stored": size(totals["stored_bytes"]),
        "ratio": times(totals["ratio"]),
        "weights ratio": times(totals["weights_ratio"]),
    }


def spent(numbers: Mapping[str, float | None]) -> float:
    """Seconds that a run's saves took, search included; ``held`` holds making the chosen draft already."""
    return sum(numbers[f"{stage}_seconds"] or 0.0 for stage in STAGES if stage != "draft")


def checkpoint_rows(run: Mapping[str, Any]) -> list[Row]:
    """A row for each checkpoint of a run."""
    return [_checkpoint_row(entry) for entry in run["checkpoints"]]


def _checkpoint_row(entry: Mapping[str, Any]) -> Row:
    lost = entry["movement_lost"] or {}
    degradation = entry["degradation"]
    return {
        "step": str(entry["step"]),
        "kind": entry["kind"],
        "configuration": configuration(entry["config"]),
        "stored": size(entry["stored_bytes"]),
        "ratio": times(entry["raw_bytes"] / entry["stored_bytes"]),
        "weights ratio": times(part_ratio(entry, "weight")),
        "search": worse(degradation["search"]),
        "held-out": worse(degradation["heldout"]) + _give_or_take(degradation["heldout_se"]),
        "met": "yes" if entry["met"] else "NO",
        "evaluations": str(entry["evaluations"]),
        "unchanged": percent(entry["unchanged"]),
        **_lost(lost),
    }


def restore_rows(run: Mapping[str, Any]) -> list[Row]:
    """A row for each restore of a run."""
    return [
        {
            "killed at": str(restore["failed_step"]),
            "resumed from": str(restore["restored_step"]),
            "rework (steps)": "-" if restore["rework_steps"] is None else str(restore["rework_steps"]),
            **_lost(restore["movement_lost"] or {}),
        }
        for restore in run["restores"]
    ]


def _lost(lost: Mapping[str, float | None]) -> Row:
    turned = {"stale by direction": number(lost["stale_direction"])} if "stale_direction" in lost else {}
    return {name: number(lost.get(name)) for name in ("stale", "noise", "er")} | turned


def configuration(config: Mapping[str, Any] | None) -> str:
    """A searched point in a few words.

    Example:
        >>> configuration({"bins": 8, "prune": 0.2, "protect": 0.005})
        'bins 8, prune 0.2, protect 0.005'
    """
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in (config or {}).items()) or "-"


def part_ratio(entry: Mapping[str, Any], role: str) -> float | None:
    """Raw over stored bytes of one role in a checkpoint; None where it has none."""
    part = entry["parts"].get(role)
    return part["raw_bytes"] / part["stored_bytes"] if part and part["stored_bytes"] else None


def size(count: float) -> str:
    """Bytes in a readable unit.

    Example:
        >>> size(999), size(12_345), size(3_200_000)
        ('999 B', '12.3 kB', '3.2 MB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    power = min(4, int(math.log10(count)) // 3)
    return f"{count / 1000**power:.1f} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def percent(share: float | None, *, signed: bool = False, digits: int | None = 2) -> str:
    """A share as a percentage, with as many digits as it has for None; "-" for no share.

    Example:
        >>> percent(0.0123), percent(0.0123, signed=True), percent(None), percent(0.005, digits=None)
        ('1.23%', '+1.23%', '-', '0.5%')
    """
    if share is None:
        return "-"
    sign = "+" if signed else ""
    return f"{100 * share:{sign}.10g}%" if digits is None else f"{share:{sign}.{digits}%}"


def worse(degradation: float | None) -> str:
    """A checkpoint's degradation, infinite where there is no number: the decoded model's metric was none.

    Example:
        >>> worse(0.0123), worse(None)
        ('+1.23%', '+inf%')
    """
    return percent(math.inf if degradation is None else degradation, signed=True)


def _give_or_take(error: float | None) -> str:
    return "" if error is None else f" ± {percent(error)}"


def number(value: float | None, *, digits: int = 3) -> str:
    """A number; "-" for None.

    Example:
        >>> number(0.12345), number(None)
        ('0.123', '-')
    """
    return "-" if value is None else f"{value:.{digits}f}"


def times(ratio: float | None) -> str:
    """A ratio; "-" for None."""
    return "-" if ratio is None else f"{ratio:.1f}x"
