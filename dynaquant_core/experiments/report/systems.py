"""Systems that shrink a training: what they cost its result, and how much smaller what they touch becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from dynaquant_core.experiments.figures import by_model, by_setting, setting_label
from dynaquant_core.experiments.price import Figure, Run, replicas_label
from dynaquant_core.experiments.report.palette import COLOURS, GREY, wrapped
from dynaquant_core.experiments.report.price import figure_text
from dynaquant_core.experiments.report.table import Row, number, percent, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

__all__ = ["draw_systems", "role_rows", "state_rows", "system_rows", "system_runs"]

#: Column title -> the number it shows, and how.
COLUMNS = {
    "final": ("final_value", "{:.4f}"),
    "without": ("final_baseline", "{:.4f}"),
    "degradation": ("final_degradation", "{:+.2%}"),
    "smaller": ("smaller", "{:.2f}x"),
    "seconds a step": ("seconds_a_step", "{:.4f}"),
}

#: Of grey bands, one for each number of replicas.
HATCHES = (None, "//", "..")
#: A number to the right of its mark.
BESIDE: Mapping[str, Any] = {
    "xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": "small", "color": GREY,
}  # fmt: skip

Numbers = Mapping[str, Figure | None]


def system_runs(runs: Sequence[Run]) -> list[Run]:
    """Those that were trained under a system."""
    return [run for run in runs if run.get("system") is not None]


def system_rows(runs: Sequence[Run]) -> list[Row]:
    """A row for each setting, seeds together; means are over the runs that did not diverge, if there are any.

    Args:
        runs: of `system_runs`.
    """
    rows = []
    for model, mine in by_model(runs).items():
        whole = by_setting([run for run in mine if run["final"]["value"] is not None])
        means = {setting_label(run): numbers for run, _, numbers in whole}
        for run, seeds, numbers in by_setting(mine):
            told = _told(means.get(setting_label(run), numbers))
            rows.append({"model": model, **_named(run, seeds), **told, **_ended(mine, run)})
    return rows


def role_rows(runs: Sequence[Run]) -> list[Row]:
    """What SmaQ and its rivals made of each role: raw over stored bytes, of a setting's first run."""
    return [
        {"model": model, "system": setting_label(run)}
        | {role: times(benefit) for role, benefit in run["system"]["roles"].items()}
        | {"not finite": str(run["system"]["not_finite"])}
        for model, mine in by_model(runs).items()
        for run, _, _ in by_setting(mine)
        if "roles" in run["system"]
    ]


def state_rows(runs: Sequence[Run]) -> list[Row]:
    """What SAMO holds, a column a term: bytes measured, and how far they are from the formula."""
    return [
        {"model": model, "system": setting_label(run), "saved": percent(run["system"]["saved"], digits=1)}
        | {term["name"]: f"{term['measured']:,}" for term in run["system"]["terms"]}
        | {"over formula": number(run["system"]["measured_over_formula"], digits=4)}
        for model, mine in by_model(runs).items()
        for run, _, _ in by_setting(mine)
        if "terms" in run["system"]
    ]


def draw_systems(canvas: Canvas, runs: Sequence[Run]) -> None:
    """The final metric, a line a setting, a mark a seed and its number.

    Grey, as the legend says: the trainings without a system, from the best seed to the worst; of two bits
    those of as many replicas.
    """
    models = by_model(runs)
    canvas.set_figheight(max(4.0, 0.5 * max(len(by_setting(mine)) for mine in models.values())))
    panels = canvas.subplots(1, len(models), squeeze=False)[0]
    for axes, (model, mine) in zip(panels, models.items(), strict=True):
        _panel(axes, mine)
        axes.set(xlabel=f"final {mine[0]['final']['metric']}", title=model)
    canvas.legend(
        *panels[0].get_legend_handles_labels(), frameon=False, fontsize="small", loc="outside lower right"
    )


def _panel(axes: Axes, runs: Sequence[Run]) -> None:
    labels = list(dict.fromkeys(setting_label(run) for run in runs))
    for index, label in enumerate(labels):
        values = [run["final"]["value"] for run in runs if setting_label(run) == label]
        known = [value for value in values if value is not None]
        axes.plot(known, [-index] * len(known), "o", color=COLOURS[0])
        if known:
            told = "  ".join(f"{value:.4g}" for value in sorted(known))
            axes.annotate(told, (max(known), -index), **BESIDE)
        if len(known) < len(values):
            axes.annotate("diverged", (0.02, -index), xycoords=("axes fraction", "data"), va="center")
    axes.margins(x=0.12)  # the last number needs room
    plain: dict[str, list[float]] = {}
    for run in runs:
        plain.setdefault(f"without a system{replicas_label(run)}", []).append(run["final"]["baseline"])
    for (label, values), hatch in zip(plain.items(), cycle(HATCHES), strict=False):
        axes.axvspan(min(values), max(values), color=GREY, alpha=0.3, linewidth=1, hatch=hatch, label=label)
    words = [wrapped(label) for label in labels]
    axes.set_yticks([-index for index in range(len(labels))], words, fontsize="small")


def _named(run: Run, seeds: Sequence[int]) -> Row:
    return {"system": setting_label(run), "seeds": str(len(seeds))}


def _told(numbers: Numbers) -> Row:
    return {title: figure_text(numbers[name], form) for title, (name, form) in COLUMNS.items()}


def _ended(runs: Sequence[Run], like: Run) -> Row:
    alike = [run for run in runs if setting_label(run) == setting_label(like)]
    count = sum(run["final"]["value"] is None for run in alike)
    return {"diverged": str(count) if count else "-"}
