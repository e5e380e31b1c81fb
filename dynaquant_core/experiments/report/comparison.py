"""The comparison: a row a setting, runs that differ in their seed only together as mean and spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynaquant_core.experiments.figures import by_model, by_setting, kind_of, saving, setting_label
from dynaquant_core.experiments.price import Figure, Run, kills_label
from dynaquant_core.experiments.report.price import figure_text
from dynaquant_core.experiments.report.systems import system_rows, system_runs
from dynaquant_core.experiments.report.table import Row, percent
from dynaquant_core.experiments.restores import unplanned

__all__ = ["comparison_rows", "seed_rows"]

#: Column title -> the number it shows, and how.
COLUMNS = {
    "met": ("met", "{:.0f}"),
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

#: The same, of what a training under failures can tell: intervals after a restore, share of training time.
TRAINED = {"rework": ("restore_rework", "{:.2f}"), "overhead": ("overhead", "{:.1%}")}


def seed_rows(runs: Sequence[Run]) -> list[Row]:
    """A row for each setting, those of a model together; none where no setting has several seeds.

    Example:
        >>> seed_rows([])
        []
    """
    saved, shrunk = saving(runs), system_runs(runs)
    if all(len(seeds) < 2 for _, seeds, _ in by_setting([*saved, *shrunk])):
        return []
    return comparison_rows(saved) + system_rows(shrunk)


def comparison_rows(runs: Sequence[Run]) -> list[Row]:
    """A row for each setting, those of a model together; the model is named where there are several.

    Example:
        >>> comparison_rows([])
        []
    """
    models = by_model(saving(runs))
    return [
        ({"model": model} if len(models) > 1 else {}) | _row(run, seeds, numbers)
        for model, mine in models.items()
        for run, seeds, numbers in by_setting(mine)
    ]


def _row(run: Run, seeds: Sequence[int], numbers: Mapping[str, Figure | None]) -> Row:
    trains = kind_of(run) == "train"
    columns = COLUMNS | TRAINED if trains else COLUMNS
    told = {title: figure_text(numbers[name], form) for title, (name, form) in columns.items()}
    kills = {"kills": kills_label(len(run["failures"]), unplanned(run))} if trains else {}
    named = {"method": setting_label(run), "threshold": percent(run["threshold"]), "seeds": str(len(seeds))}
    return {**named, **kills, **told}
