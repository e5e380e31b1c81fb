"""Tables and plots of what ``kind: ablate`` measures beyond whole saves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynaquant_core.experiments.price import Run, held_label, method_label
from dynaquant_core.experiments.report.palette import plain_numbers
from dynaquant_core.experiments.report.table import Row, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["bins_rows", "bins_text", "coder_ratios", "coder_rows", "draw_bins", "draw_coders"]


def coder_ratios(entries: Sequence[Any], coder: str) -> tuple[float, float]:
    """(ratio of the weights, ratio of the codes alone) over checkpoints.

    Example:
        >>> kept_exactly = {"raw_bytes": 80, "side_bytes": 20, "coded_weights": 0, "bytes": {"RLE+HE": 0}}
        >>> coder_ratios([kept_exactly], "RLE+HE")  # there are no codes
        (4.0, nan)
    """
    raw = sum(entry["raw_bytes"] for entry in entries)
    codes = sum(entry["bytes"][coder] for entry in entries)
    coded = 4 * sum(entry["coded_weights"] for entry in entries)
    stored = codes + sum(entry["side_bytes"] for entry in entries)
    return raw / max(1, stored), coded / max(1, codes) if coded else math.nan


def coder_rows(run: Run) -> list[Row]:
    """A row a checkpoint and one for the whole run, a column a coder."""
    entries = run["coders"]
    rows = [_coder_row(str(entry["step"]), [entry]) for entry in entries]
    return [*rows, _coder_row("whole run", entries)] if entries else []


def _coder_row(name: str, entries: Sequence[Any]) -> Row:
    row = {"step": name, "side": f"{sum(entry['side_bytes'] for entry in entries):,} B"}
    for coder in entries[0]["bytes"]:
        weights, codes = coder_ratios(entries, coder)
        row[coder] = f"{weights:.1f}x (-)" if math.isnan(codes) else f"{weights:.1f}x ({codes:.1f}x)"
    return row


def draw_coders(canvas: Canvas, runs: Sequence[Run]) -> None:
    """Left: ratio of the weights at each checkpoint, a line a coder; right: of the codes alone."""
    (run,) = runs
    entries = run["coders"]
    for axes, part, title in zip(canvas.subplots(1, 2), (0, 1), ("weights", "codes alone"), strict=True):
        for coder in entries[0]["bytes"]:
            ratios = [coder_ratios([entry], coder)[part] for entry in entries]
            axes.plot([entry["step"] for entry in entries], ratios, "o-", label=coder)
        axes.set(xlabel="step", ylabel="raw / stored", title=f"Ratio of each checkpoint: {title}")
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
    axes.legend(frameon=False, fontsize="small")


def bins_text(entries: Sequence[Any]) -> str:
    """Mean of the fewest bins over checkpoints; a mark where some have none.

    Example:
        >>> bins_text([{"bins": 8, "mark": ""}, {"bins": 11, "mark": ""}])
        '9.5'
        >>> bins_text([{"bins": 8, "mark": ""}, {"bins": None, "mark": "x"}])
        'x (8.0 at 1 of 2)'
    """
    known = [entry["bins"] for entry in entries if entry["bins"] is not None]
    marks = sorted({entry["mark"] for entry in entries} - {""})
    if not marks:
        return f"{statistics.fmean(known):.1f}" if known else "-"
    rest = f" ({statistics.fmean(known):.1f} at {len(known)} of {len(entries)})" if known else ""
    return f"{' '.join(marks)}{rest}"


def bins_rows(runs: Sequence[Run]) -> list[Row]:
    """A row for each model and setting, a column for each threshold; seeds count as more checkpoints."""
    rows: list[Row] = []
    for name, thresholds in _by_name(runs).items():
        rows.append({"model": name[0], "method": name[1]})
        for threshold, entries in sorted(thresholds.items()):
            rows[-1][percent(threshold, digits=None)] = bins_text(entries)
    return rows


def draw_bins(canvas: Canvas, runs: Sequence[Run]) -> None:
    """The fewest bins at each checkpoint: a panel a threshold, a line for each model and method."""
    named = _by_name(runs)
    thresholds = sorted({run["threshold"] for run in runs})
    panels = canvas.subplots(1, len(thresholds), sharey=True, squeeze=False)[0]
    for axes, threshold in zip(panels, thresholds, strict=True):
        for name, found in named.items():
            entries = [entry for entry in found.get(threshold, []) if entry["bins"] is not None]
            points = [(entry["step"], entry["bins"]) for entry in entries]
            axes.plot([step for step, _ in points], [bins for _, bins in points], "o", label=" ".join(name))
        axes.set(xlabel="step", title=f"threshold {percent(threshold, digits=None)}")
        axes.set_yscale("log", base=2)
    panels[0].set_ylabel("bins")
    plain_numbers(panels[0].yaxis)  # which all share
    panels[-1].legend(frameon=False, fontsize="x-small")


def _by_name(runs: Sequence[Run]) -> dict[tuple[str, str], dict[float, list[Any]]]:
    """(model, method and what it is held to) -> threshold -> its checkpoints."""
    named: dict[tuple[str, str], dict[float, list[Any]]] = {}
    for run in runs:
        name = (f"{run['model']} ({run['parameters']:,})", method_label(run) + held_label(run))
        named.setdefault(name, {}).setdefault(run["threshold"], []).extend(run["bins"])
    return named
