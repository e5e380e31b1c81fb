"""Runs that differ in their seed only, together: mean and spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynaquant_core.experiments.figures import by_setting, setting_label
from dynaquant_core.experiments.price import Figure, Run
from dynaquant_core.experiments.report.price import figure_text
from dynaquant_core.experiments.report.table import Row, percent

__all__ = ["seed_rows"]

#: Column title -> the number it shows, and how.
COLUMNS = {
    "weights ratio": ("ratio_weights", "{:.1f}x"),
    "state ratio": ("ratio_state", "{:.1f}x"),
    "degradation": ("degradation_mean", "{:+.2%}"),
    "worst": ("degradation_max", "{:+.2%}"),
    "final": ("final_degradation", "{:+.2%}"),
    "stale": ("stale_mean", "{:.3f}"),
    "noise": ("noise_mean", "{:.2f}"),
    "unchanged": ("unchanged", "{:.1%}"),
    "search seconds": ("search_seconds", "{:.1f}"),
}


def seed_rows(runs: Sequence[Run]) -> list[Row]:
    """A row for each setting; none where no setting has several seeds.

    Example:
        >>> seed_rows([])
        []
    """
    settings = by_setting(runs)
    if all(len(seeds) < 2 for _, seeds, _ in settings):
        return []
    return [_row(run, seeds, numbers) for run, seeds, numbers in settings]


def _row(run: Run, seeds: Sequence[int], numbers: Mapping[str, Figure | None]) -> Row:
    told = {title: figure_text(numbers[name], form) for title, (name, form) in COLUMNS.items()}
    kills = {} if (run.get("of") or run["kind"]) == "replay" else {"kills": str(len(run["failures"]))}
    named = {"method": setting_label(run), "threshold": percent(run["threshold"]), "seeds": str(len(seeds))}
    return {**named, **kills, **told}
