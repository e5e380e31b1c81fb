"""The sections of an ablation: figures against the axis, coders of the same codes, the fewest bins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynaquant_core.experiments.figures import by_setting, figures
from dynaquant_core.experiments.price import Figure, Run, method_label, varied_label
from dynaquant_core.experiments.report.measured import bins_rows, coder_rows, draw_bins, draw_coders
from dynaquant_core.experiments.report.palette import looks
from dynaquant_core.experiments.report.price import figure_text
from dynaquant_core.experiments.report.table import Row, percent
from dynaquant_core.experiments.restores import unplanned

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["Part", "ablation_parts", "axis_rows", "axis_text", "draw_axis"]

#: Column title -> the number it shows, and how.
COLUMNS = {
    "weights ratio": ("ratio_weights", "{:.1f}x"),
    "whole ratio": ("ratio_all", "{:.1f}x"),
    "degradation": ("degradation_mean", "{:+.2%}"),
    "held-out": ("heldout_degradation_mean", "{:+.2%}"),
    "met": ("met", "{:.1f}"),
    "unchanged": ("unchanged", "{:.1%}"),
    "stale": ("stale_mean", "{:.3f}"),
    "noise": ("noise_mean", "{:.2f}"),
    "evaluations": ("evaluations", "{:.0f}"),
}
#: The same, where `fix` could not be kept everywhere: how many checkpoints hold it.
HELD = {"at fix": ("fixed", "{:.1f}")}
#: The same, of runs that were trained.
TRAINED = {
    "final degradation": ("final_degradation", "{:+.2%}"),
    "stale x interval": ("stale_times_interval", "{:.3f}"),
}
#: What is plotted: title -> number, factor.
PANELS = {
    "raw / stored (weights)": ("ratio_weights", 1.0),
    "degradation (%)": ("degradation_mean", 100.0),
    "unchanged (%)": ("unchanged", 100.0),
    "stale": ("stale_mean", 1.0),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One section.

    Args:
        title: of the section.
        words: what it shows.
        rows: its table.
        name: of its plot's file.
        draw: fills a figure with the runs of the section.
        runs: those runs.
    """

    title: str
    words: str
    rows: list[Row]
    name: str
    draw: Callable[[Canvas, Sequence[Run]], None]
    runs: Sequence[Run]


def ablation_parts(runs: Sequence[Run]) -> list[Part]:
    """The sections that these runs have something for; none of other kinds.

    Example:
        >>> ablation_parts([])
        []
    """
    saved = [run for run in runs if run.get("axis") and run.get("measure") == "saves"]
    parts = [_axis_part(saved)] if saved else []
    for index, run in enumerate(runs):
        if run.get("measure") == "coders":
            parts.append(_coder_part(index, run))
    binned = [run for run in runs if run.get("measure") == "bins"]
    if binned:
        words = (
            "Mean over checkpoints of the fewest bins that keep the threshold, without pruning.  x: at some "
            "checkpoint no number of bins does; T: out of time; in brackets the mean over the others."
        )
        parts.append(Part("Bins needed", words, bins_rows(binned), "bins", draw_bins, binned))
    return parts


def _axis_part(runs: Sequence[Run]) -> Part:
    key = runs[0]["axis"]["key"]
    words = "Mean, and standard deviation over seeds where there are several."
    return Part(f"Against {key}", words, axis_rows(runs), "axis", draw_axis, runs)


def _coder_part(index: int, run: Run) -> Part:
    words = (
        "Raw over stored bytes of the weights when the same codes go through each coder; centres, protected "
        "weights and layout are the same for all and counted.  In brackets: of the codes alone."
    )
    title = f"Coders, run {index + 1}: {run['model']}, {method_label(run)}, {percent(run['threshold'])}"
    return Part(title, words, coder_rows(run), f"coders-{index}", draw_coders, [run])


def axis_rows(runs: Sequence[Run]) -> list[Row]:
    """A row for each value of the axis and each setting of the grid beside it, in the order of the axis."""
    names, columns = _lines(runs), COLUMNS
    if any(figures(run)["final_degradation"] is not None for run in runs):
        columns = COLUMNS | TRAINED
    if any(run["fix"] and figures(run)["fixed"] != len(run["checkpoints"]) for run in runs):
        columns = columns | HELD
    rows = []
    for value in _values(runs):
        here = [run for run in runs if axis_text(run) == value]
        for run, seeds, numbers in by_setting(here):
            told = {title: figure_text(numbers[name], form) for title, (name, form) in columns.items()}
            setting = {"setting": names[_line(run)]} if len(names) > 1 else {}
            rows.append({run["axis"]["key"]: value, **setting, "seeds": str(len(seeds)), **told})
    return rows


def draw_axis(canvas: Canvas, runs: Sequence[Run]) -> None:
    """A panel a figure, a line for each setting of the grid; bars are the spread over seeds."""
    trained = any(figures(run)["final_degradation"] is not None for run in runs)
    panels = PANELS | ({"final degradation (%)": ("final_degradation", 100.0)} if trained else {})
    values, names = _values(runs), _lines(runs)
    drawn = looks(runs, lambda run: names[_line(run)])
    places = canvas.subplots(1, len(panels))
    for axes, (title, (number, factor)) in zip(places, panels.items(), strict=True):
        for line, label in names.items():
            mine = [run for run in runs if _line(run) == line]
            found = [
                Figure.of(figures(run)[number] for run in mine if axis_text(run) == value) for value in values
            ]
            known = [(place, figure) for place, figure in enumerate(found) if figure is not None]
            axes.errorbar(
                [place for place, _ in known],
                [factor * figure.mean for _, figure in known],
                [factor * (figure.spread or 0.0) for _, figure in known],
                color=drawn[label].colour,
                marker=drawn[label].mark,
                capsize=3,
                label=label,
            )
        axes.set_xticks(range(len(values)), values, rotation=45, ha="right", fontsize="small")
        axes.set_xlabel(runs[0]["axis"]["key"])
        axes.set_title(title, fontsize="small")
    if len(names) > 1:
        handles = places[0].get_legend_handles_labels()
        canvas.legend(*handles, frameon=False, fontsize="small", loc="outside lower center", ncols=3)


def axis_text(run: Run) -> str:
    """The run's place on the axis, in words.

    Example:
        >>> axis_text({"axis": {"key": "fix", "value": {"bins": 8, "protect": 0.0}}})
        'bins 8, protect 0.0'
    """
    value = run["axis"]["value"]
    if isinstance(value, Mapping):
        named = {key: inner for key, inner in value.items() if key != "name"}
        words = [str(value["name"])] if "name" in value else []
        return ", ".join([*words, *(f"{key} {inner}" for key, inner in named.items())]) or "nothing"
    return str(value)


def _values(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(axis_text(run) for run in runs))


def _line(run: Run) -> tuple[Any, ...]:
    """What a run is beside its value on the axis and its seed: what one line of the plot stands for."""
    head, _, option = run["axis"]["key"].partition(".")
    options = {name: value for name, value in run["options"].items() if head != "method" or name != option}
    parts = {
        "model": f"{run['model']} ({run['parameters']:,})",
        "method": method_label({**run, "options": options}),
        "threshold": percent(run["threshold"], digits=None),
        "failures": f"{len(run['failures'])} failures",
        "unplanned": f"{unplanned(run)} unplanned",
        "moments": f"moments {run['moments']}",
        "checkpoint_every": f"every {run['interval_steps']}",
        "fix": str(run["fix"] or "nothing fixed"),
        "search": f"search {run['search']}",
        "max_chain": f"chains of {run['max_chain']}",
        "varied": varied_label({"varied": _beside(run)}).removeprefix(", "),
    }
    return tuple("" if name == head and (head != "method" or not option) else parts[name] for name in parts)


def _beside(run: Run) -> dict[str, Any]:
    """What varied beside the axis and what a line names by itself."""
    named = {run["axis"]["key"], "checkpoint_every", "max_chain"}
    varied = run.get("varied", {})
    return {key: varied[key] for key in varied if not any(f"{key}.".startswith(f"{each}.") for each in named)}


def _lines(runs: Sequence[Run]) -> dict[tuple[Any, ...], str]:
    """Line -> what tells it from the others, in words."""
    lines = list(dict.fromkeys(_line(run) for run in runs))
    differing = [place for place, column in enumerate(zip(*lines, strict=True)) if len(set(column)) > 1]
    words = {line: [line[place] for place in differing if line[place]] for line in lines}
    return {line: ", ".join(told) or "all" for line, told in words.items()}
