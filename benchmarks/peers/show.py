"""Rows of figures, and the table in which they are printed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dynaquant_core.cli.output import print_table, share, write_line

__all__ = ["summary", "tables"]

Row = dict[str, Any]

COLUMNS = (
    "<peer", "limit", "weights", "moments", "state", "met", "worst", "held-out", "unchanged", "stale",
    "noise", "er", "search", "write", "read", "exact",
)  # fmt: skip


def summary(checkpoints: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the checkpoints of one row come to: ratios over all of them, means of the rest."""
    lost = {
        name: [entry["movement_lost"][name] for entry in checkpoints] for name in ("stale", "noise", "er")
    }
    seconds = {
        f"{stage}_seconds": _mean(entry["seconds"][stage] for entry in checkpoints)
        for stage in ("search", "write", "read")
    }
    bits = [entry["bits"] for entry in checkpoints]
    search, heldout = (
        [entry["degradation"][part] for entry in checkpoints] for part in ("search", "heldout")
    )
    return {
        "ratio_weights": _ratio(checkpoints, ("weight",)),
        "ratio_moments": _ratio(checkpoints, ("moment",)),
        "ratio_state": _ratio(checkpoints, ("weight", "moment")),
        "checkpoints_count": len(checkpoints),
        "met": sum(bool(entry["met"]) for entry in checkpoints),
        "degradation_mean": _over_all(statistics.fmean, search),
        "degradation_max": _over_all(max, search),
        "heldout_degradation_mean": _over_all(statistics.fmean, heldout),
        "unchanged": _mean(entry["unchanged"] for entry in checkpoints),
        **{f"{name}_mean": _mean(values) for name, values in lost.items()},
        **seconds,
        "exact": {role: all(one[role] for one in bits) for role in bits[0]} if bits and bits[0] else None,
    }


def tables(rows: Iterable[Row]) -> None:
    """Prints the rows of each recording under its name, and below them why a peer failed."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(title(row), []).append(row)
    for name, alike in groups.items():
        print_table(name, COLUMNS, [_cells(row) for row in alike])
        for row in alike:
            if "error" in row:
                write_line(f"{row['peer']}: {row['error']}")


def title(row: Row) -> str:
    """What was recorded, and where the peers ran."""
    return (
        f"{row['model']} ({row['parameters']:,} parameters) on {row['data']}, seed {row['seed']}, every "
        f"{row['interval_steps']} of {row['steps']} steps, {row['device']}"
    )


def _cells(row: Row) -> list[str]:
    if row.get("error"):
        return [row["peer"], "failed", *["-"] * (len(COLUMNS) - 2)]
    figures = row["summary"]
    exact = figures["exact"]
    return [
        row["peer"],
        _limit(row),
        *(_times(figures[f"ratio_{part}"]) for part in ("weights", "moments", "state")),
        f"{figures['met']} of {figures['checkpoints_count']}" if row["threshold"] is not None else "-",
        *(share(figures[name]) for name in ("degradation_max", "heldout_degradation_mean", "unchanged")),
        *(_number(figures[f"{name}_mean"]) for name in ("stale", "noise", "er")),
        *(_number(figures[f"{stage}_seconds"]) for stage in ("search", "write", "read")),
        "-" if exact is None else _exact(exact),
    ]


def _ratio(entries: Sequence[Mapping[str, Any]], roles: Sequence[str]) -> float | None:
    parts = [entry["parts"][role] for entry in entries for role in roles if role in entry["parts"]]
    stored = sum(part["stored_bytes"] for part in parts)
    return sum(part["raw_bytes"] for part in parts) / stored if stored else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return statistics.fmean(known) if known else None


def _over_all(together: Callable[[Sequence[float]], float], values: Sequence[float | None]) -> float | None:
    """None where one is: a checkpoint that decodes to no number must not flatter its row."""
    known = _known(values)
    return together(known) if known and len(known) == len(values) else None


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x"


def _limit(row: Row) -> str:
    return f"er {row['er_limit']}" if "er_limit" in row else share(row["threshold"], 1)


def _exact(roles: Mapping[str, bool]) -> str:
    return "all" if all(roles.values()) else "weights" if roles.get("weight") else "no"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
