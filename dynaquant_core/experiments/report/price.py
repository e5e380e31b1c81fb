"""The price of restores in an experiment: a table, a sentence about chance, and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dynaquant_core.experiments.figures import by_model, model_label, setting_label
from dynaquant_core.experiments.price import (
    LAW,
    LAW_METRIC,
    LAW_RANGE,
    Figure,
    Price,
    Run,
    training_label,
    uninterrupted,
)
from dynaquant_core.experiments.report.palette import GREY, legend_beside, looks, wrapped
from dynaquant_core.experiments.report.table import Row, percent
from dynaquant_core.experiments.restores import restored

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from dynaquant_core.experiments.report.palette import Look

__all__ = ["draw_price", "figure_text", "has_restores", "law_holds", "price_rows", "spread_lines"]

#: Least right end of the axis of stale x interval.
LEAST_SUM = 0.1


def has_restores(runs: Sequence[Run]) -> bool:
    """Whether there is a price to show."""
    return any(restored(run) for run in runs)


def law_holds(runs: Sequence[Run]) -> bool:
    """Whether the law of restores says something about any of them."""
    return any(run["final"]["metric"] == LAW_METRIC for run in runs if restored(run))


def price_rows(entries: Sequence[Price]) -> list[Row]:
    """A row for each setting, the model named where there are several.

    The law has a word where the final metric is a loss.
    """
    models = [model_label({"model": entry.model, "parameters": entry.parameters}) for entry in entries]
    several = len(set(models)) > 1
    return [
        ({"model": model} if several else {}) | _row(entry)
        for model, entry in zip(models, entries, strict=True)
    ]


def _row(entry: Price) -> Row:
    law = None if entry.lost is None or entry.metric != LAW_METRIC else LAW * entry.lost.mean
    return {
        "method": entry.method,
        "threshold": percent(entry.threshold),
        "interval": percent(entry.interval, digits=1),
        "restores": entry.kills,
        "seeds": str(len(entry.seeds)),
        "weights ratio": figure_text(entry.ratio, "{:.1f}x"),
        "stale": figure_text(entry.stale, "{:.3f}"),
        "noise": figure_text(entry.noise, "{:.2f}"),
        "er": figure_text(entry.er, "{:.2f}"),
        "stale x interval": figure_text(entry.lost, "{:.3f}"),
        "law": percent(law, signed=True),
        "final cost": figure_text(entry.cost, "{:+.2%}"),
        "train loss cost": figure_text(entry.train_cost, "{:+.2%}"),
    }


def figure_text(figure: Figure | None, form: str) -> str:
    """A mean and, where there are several seeds, its spread.

    Example:
        >>> figure_text(Figure(0.0123, 0.004), "{:+.2%}"), figure_text(Figure(2.0), "{:.1f}x")
        ('+1.23% ± 0.40%', '2.0x')
    """
    if figure is None:
        return "-"
    text = form.format(figure.mean)
    return text if figure.spread is None else f"{text} ± {form.replace('+', '').format(figure.spread)}"


def spread_lines(runs: Sequence[Run]) -> list[str]:
    """A line a training: what its uninterrupted runs of other seeds differ by.

    Smaller costs cannot be told from chance.
    """
    trainings = _trainings([run for run in runs if run["final"]["baseline"] is not None])
    return [
        f"{name}, {_spread_line(mine)}" if len(trainings) > 1 else _spread_line(mine)
        for name, mine in trainings.items()
    ]


def _trainings(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by what was trained and how: their uninterrupted runs differ in the seed only."""
    found: dict[str, list[Run]] = {}
    for model, mine in by_model(runs).items():
        several = len({run["data"] for run in mine}) > 1
        for run in mine:
            told = "data.source" in run.get("varied", {})
            data = f" on {run['data']}" if several and not told else ""
            found.setdefault(model + data + training_label(run), []).append(run)
    return found


def _spread_line(runs: Sequence[Run]) -> str:
    figure, floor = uninterrupted(runs)
    if figure is None or figure.spread is None or floor is None:
        return "uninterrupted runs: one seed, so that chance cannot be told from cost"
    seeds = len({run["seed"] for run in runs})
    metric = runs[0]["final"]["metric"]
    return (
        f"uninterrupted runs: final {metric} {figure.mean:.4f} ± {figure.spread:.4f} ({floor:.2%}) over "
        f"{seeds} seeds"
    )


def draw_price(canvas: Canvas, runs: Sequence[Run]) -> None:
    """Left: final cost over the sum of stale x interval, a mark a run; right: over the ratio; a row a model.

    The law is drawn where a final metric is a loss.  The grey band is what uninterrupted runs of other seeds
    differ by, where the model has one training only.
    """
    models = {model: mine for model, mine in by_model(runs).items() if has_restores(mine)}
    how, named = looks(runs), set[str]()
    canvas.set_figheight(canvas.get_figheight() * len(models))
    rows = canvas.subplots(len(models), 2, sharey="row", squeeze=False, width_ratios=(3, 2))
    for panels, (model, mine) in zip(rows, models.items(), strict=True):
        _panels(panels, mine, how, named)
        panels[0].set_title(f"{model}: what restores cost" if len(models) > 1 else "What restores cost")
    legend_beside(canvas)


def _panels(
    panels: Sequence[Axes], runs: Sequence[Run], looks_of: Mapping[str, Look], named: set[str]
) -> None:
    """Both panels of a model; ``named``: what the legend says already."""
    left, right = panels
    priced = [run for run in runs if restored(run) and run["final"]["relative_degradation"] is not None]
    for label, look in looks_of.items():
        mine = [run for run in priced if setting_label(run) == label]
        _marks(left, mine, [run["stale_times_interval"] for run in mine], look, label, named)
        _marks(right, mine, [run["totals"]["weights_ratio"] for run in mine], look, label, named)
    _law(left, [run for run in priced if law_holds([run])], named)
    floor = uninterrupted(runs)[1] if len(_trainings(runs)) == 1 else None
    for axes in (left, right):
        axes.axhline(0, color=GREY, linewidth=0.8)
        if floor is not None:
            axes.axhspan(-100 * floor, 100 * floor, color=GREY, alpha=0.15, linewidth=0)
    left.set(xlabel="sum over restores of stale x interval", ylabel="final cost (%)")
    right.set(xlabel="raw / stored (weights)", title="and at which ratio")
    low, high = left.get_xlim()
    left.set_xlim(min(low, -0.01), max(high, LEAST_SUM))  # a sum of nearly nothing should look like it


def _told(label: str, named: set[str]) -> str | None:
    """What the legend is to say of a label, once."""
    known = label in named
    named.add(label)
    return None if known else wrapped(label)


def _marks(
    axes: Axes,
    runs: Sequence[Run],
    across: Sequence[float | None],
    look: Look,
    label: str,
    named: set[str],
) -> None:
    """A mark a run: hollow at a threshold above 1%, larger with more restores."""
    for run, x in zip(runs, across, strict=True):
        if x is None:
            continue
        axes.plot(
            x,
            100 * run["final"]["relative_degradation"],
            look.mark,
            color=look.colour,
            markersize=4 + 0.5 * len(restored(run)),
            markerfacecolor="none" if run["threshold"] > 0.01 else look.colour,
            label=_told(label, named),
        )


def _law(axes: Axes, runs: Sequence[Run], named: set[str]) -> None:
    far = max((run["stale_times_interval"] or 0.0 for run in runs), default=0.0)
    if runs:
        far, (low, high) = max(far, LEAST_SUM), LAW_RANGE
        axes.plot([0, far], [0, 100 * LAW * far], "--", color=GREY, label=_told(f"{LAW:.0%} a unit", named))
        axes.fill_between([0, far], [0, 100 * low * far], [0, 100 * high * far], color=GREY, alpha=0.1)
