"""Ratio of each checkpoint over the training, a panel a model, a line a setting; restores marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaquant_core.experiments.figures import by_model, setting_label
from dynaquant_core.experiments.price import Run
from dynaquant_core.experiments.report.palette import GREY, legend_beside, looks, plain_numbers, wrapped
from dynaquant_core.experiments.report.table import part_ratio, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

__all__ = ["draw_history"]


def draw_history(canvas: Canvas, runs: Sequence[Run]) -> None:
    """Of each setting its first run at the tightest threshold; dotted: steps that were restored from."""
    models, how = by_model(runs), looks(runs)
    panels = canvas.subplots(1, len(models), squeeze=False)[0]
    named: set[str] = set()
    for axes, (model, mine) in zip(panels, models.items(), strict=True):
        threshold = min(run["threshold"] for run in mine)
        first: dict[str, Run] = {}
        for run in mine:
            if run["threshold"] == threshold:
                first.setdefault(setting_label(run), run)
        for label, run in first.items():
            told = None if label in named else wrapped(label)
            _line(axes, run, how[label].colour, how[label].mark, told)
            named.add(label)
        _restores(axes, list(first.values()))
        axes.set(xlabel=f"step (threshold {percent(threshold, digits=None)})", title=model, yscale="log")
        plain_numbers(axes.yaxis)
    panels[0].set_ylabel("raw / stored (weights)")
    legend_beside(canvas)


def _line(axes: Axes, run: Run, colour: str, mark: str, label: str | None) -> None:
    points = [(entry["step"], part_ratio(entry, "weight")) for entry in run["checkpoints"]]
    known = [(step, ratio) for step, ratio in points if ratio is not None]
    steps, ratios = [step for step, _ in known], [ratio for _, ratio in known]
    axes.plot(steps, ratios, f"{mark}-", color=colour, linewidth=1, markersize=3, label=label)


def _restores(axes: Axes, runs: Sequence[Run]) -> None:
    steps = {restore["restored_step"] for run in runs for restore in run["restores"]}
    for step in sorted(steps):
        axes.axvline(step, color=GREY, linestyle=":", linewidth=0.8)
