"""The trade-off: how small against how much worse, a panel a model, a mark a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaquant_core.experiments.figures import by_model, figures, setting_label
from dynaquant_core.experiments.price import Run
from dynaquant_core.experiments.report.palette import GREY, looks, plain_numbers
from dynaquant_core.experiments.restores import restored

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

__all__ = ["draw_tradeoff"]


def draw_tradeoff(canvas: Canvas, runs: Sequence[Run]) -> None:
    """Weights ratio across; up, by how much a run that went on from files ended worse.

    Of a run that did not, and of recorded checkpoints, it is the mean degradation of the checkpoints.
    Hollow marks: thresholds above 1%.  A cross over a mark: a checkpoint did not keep the threshold.
    """
    models, how = by_model(runs), looks(runs)
    panels = canvas.subplots(1, len(models), squeeze=False)[0]
    named: set[str] = set()
    for axes, (model, mine) in zip(panels, models.items(), strict=True):
        for run in mine:
            label = setting_label(run)
            _mark(axes, run, how[label].colour, how[label].mark, None if label in named else label)
            named.add(label)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set(xlabel="raw / stored (weights)", title=model, xscale="log")
        plain_numbers(axes.xaxis)
    panels[0].set_ylabel("degradation (%)")
    canvas.legend(frameon=False, fontsize="small", loc="outside right center")


def _mark(axes: Axes, run: Run, colour: str, mark: str, label: str | None) -> None:
    numbers = figures(run)
    ratio = numbers["ratio_weights"]
    went_on = restored(run) or (run.get("of") or run["kind"]) == "transfer"
    worse = numbers["final_degradation"] if went_on else numbers["degradation_mean"]
    if ratio is None or worse is None:
        return
    face = "none" if run["threshold"] > 0.01 else colour
    axes.plot(ratio, 100 * worse, mark, color=colour, markerfacecolor=face, linestyle="none", label=label)
    if numbers["met"] != numbers["checkpoints"]:
        axes.plot(ratio, 100 * worse, "x", color=GREY, markersize=10)
