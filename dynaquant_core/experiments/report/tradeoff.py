"""The trade-off: how small against how much worse, a panel a model, a mark a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaquant_core.experiments.figures import by_model, figures, kind_of, setting_label
from dynaquant_core.experiments.price import Run
from dynaquant_core.experiments.report.palette import GREY, Look, legend_beside, looks, plain_numbers, wrapped
from dynaquant_core.experiments.restores import restored

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

__all__ = ["draw_tradeoff"]


#: What a row of panels puts across: its words, and the number.
WEIGHTS = ("weights", "ratio_weights")
STATE = ("state", "ratio_state")


def draw_tradeoff(canvas: Canvas, runs: Sequence[Run]) -> None:
    """Ratio of the weights across; up, by how much a run that went on from files ended worse.

    Where moments are kept in several ways, a second row has the ratio of weights and moments.  Of a run that
    did not go on from files, and of recorded checkpoints, up is the mean degradation of the checkpoints.
    Hollow marks: thresholds above 1%.  A cross over a mark: a checkpoint did not keep the threshold.
    """
    models, how = by_model(runs), looks(runs)
    rows = [WEIGHTS] if len({run["moments"] for run in runs}) < 2 else [WEIGHTS, STATE]
    canvas.set_figheight(canvas.get_figheight() * len(rows))
    named: set[str] = set()
    grid = canvas.subplots(len(rows), len(models), squeeze=False)
    for panels, (words, ratio) in zip(grid, rows, strict=True):
        for axes, (model, mine) in zip(panels, models.items(), strict=True):
            for run in mine:
                label = setting_label(run)
                _mark(axes, run, ratio, how[label], None if label in named else wrapped(label))
                named.add(label)
            axes.axhline(0, color=GREY, linewidth=0.8)
            axes.set(xlabel=f"raw / stored ({words})", title=model, xscale="log")
            plain_numbers(axes.xaxis)
        panels[0].set_ylabel("degradation (%)")
    legend_beside(canvas)


def _mark(axes: Axes, run: Run, ratio: str, look: Look, label: str | None) -> None:
    numbers = figures(run)
    across = numbers[ratio]
    went_on = restored(run) or kind_of(run) == "transfer"
    worse = numbers["final_degradation"] if went_on else numbers["degradation_mean"]
    if across is None or worse is None:
        return
    colour = look.colour
    face = "none" if run["threshold"] > 0.01 else colour
    up = 100 * worse
    axes.plot(across, up, look.mark, color=colour, markerfacecolor=face, linestyle="none", label=label)
    if numbers["met"] != numbers["checkpoints"]:
        axes.plot(across, up, "x", color=GREY, markersize=10)
