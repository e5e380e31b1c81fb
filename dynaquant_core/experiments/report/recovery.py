"""Recovery: how long a run needed, after each restore, to be back where it had been."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynaquant_core.experiments.figures import by_model, setting_label
from dynaquant_core.experiments.price import Run
from dynaquant_core.experiments.report.palette import looks, wrapped
from dynaquant_core.experiments.report.table import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["draw_recovery", "has_recovery"]


def has_recovery(runs: Sequence[Run]) -> bool:
    """Whether there is any to show."""
    return any(_reworks(run) for run in runs)


def draw_recovery(canvas: Canvas, runs: Sequence[Run]) -> None:
    """A panel a model, a column a setting and threshold: the rework of each restore, and the mean."""
    models = {model: mine for model, mine in by_model(runs).items() if has_recovery(mine)}
    panels = canvas.subplots(1, len(models), squeeze=False, sharey=True)[0]
    how = looks(runs)
    for axes, (model, mine) in zip(panels, models.items(), strict=True):
        groups: dict[tuple[str, float], list[float]] = {}
        for run in mine:
            groups.setdefault((setting_label(run), run["threshold"]), []).extend(_reworks(run))
        shown = {key: values for key, values in groups.items() if values}
        for place, ((label, _), values) in enumerate(shown.items()):
            colour = how[label].colour
            axes.plot([place] * len(values), values, how[label].mark, color=colour, alpha=0.5, markersize=4)
            axes.hlines(sum(values) / len(values), place - 0.3, place + 0.3, color=colour)
        words = [wrapped(f"{label} {percent(threshold, digits=None)}") for label, threshold in shown]
        axes.set_xticks(range(len(words)), words, rotation=45, ha="right", fontsize="small")
        axes.set_title(model)
    panels[0].set_ylabel("rework (intervals)")


def _reworks(run: Run) -> list[float]:
    known = (restore.get("rework_intervals") for restore in run["restores"])
    return [value for value in known if value is not None]
