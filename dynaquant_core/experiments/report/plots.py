"""The plots of a run.  Needs matplotlib; figures are made without its global state."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dynaquant_core.errors import DependencyError
from dynaquant_core.experiments.report.table import part_ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PLOTS", "draw", "png"]

Run = Mapping[str, Any]

#: Colour-blind safe (Okabe and Ito).
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#777777"
ROLE_COLOURS = {"weight": BLUE, "moment": ORANGE, "exact": GREY}
#: The time drawing up the chosen draft is part of the time the thread is held.
STAGE_COLOURS = {"collector": GREY, "held": RED, "search": BLUE, "encode": GREEN, "commit": PURPLE}
#: Inches that a value of a configuration takes, with its label.
LINE = 0.2


def draw(run: Run) -> dict[str, bytes]:
    """Every plot of a run as a PNG, by its name in `PLOTS`.

    Raises:
        DependencyError: matplotlib is not installed.
    """
    return {name: png(plot, run) for name, plot in PLOTS.items()}


Subject = TypeVar("Subject")


def png(plot: Callable[[Figure, Subject], None], subject: Subject) -> bytes:
    """A figure filled by ``plot`` with ``subject``, as a PNG.

    Raises:
        DependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DependencyError.of_extra("plots need matplotlib", "plots") from None
    figure = Figure(figsize=(11, 4), layout="constrained")
    plot(figure, subject)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def loss(figure: Figure, run: Run) -> None:
    """Training loss of every life of the run over the uninterrupted one; kills and restores marked."""
    axes = figure.add_subplot()
    if run["restores"] or not run["curves"]:  # a replay has only what was recorded
        axes.plot(*_columns(run["baseline_curve"]), color=GREY, linewidth=1, label="uninterrupted")
    for index, curve in enumerate(run["curves"]):
        axes.plot(*_columns(curve), color=BLUE, linewidth=1, label="this run" if index == 0 else None)
    for index, restore in enumerate(run["restores"]):
        first = index == 0
        axes.axvline(restore["failed_step"], color=RED, linestyle="--", label="killed" if first else None)
        axes.axvline(
            restore["restored_step"], color=GREEN, linestyle=":", label="resumed from" if first else None
        )
    axes.set(xlabel="step", ylabel="training loss", title="Loss, with failures marked")
    _legend(axes)


def sizes(figure: Figure, run: Run) -> None:
    """Left: compression ratio of each checkpoint; right: the stored bytes of each, by role."""
    left, right = figure.subplots(1, 2)
    entries = run["checkpoints"]
    steps = [entry["step"] for entry in entries]
    everything = [entry["raw_bytes"] / entry["stored_bytes"] for entry in entries]
    left.plot(steps, [part_ratio(entry, "weight") for entry in entries], "o-", color=BLUE, label="weights")
    left.plot(steps, everything, "s-", color=GREY, label="whole state")
    keys = [index for index, entry in enumerate(entries) if entry["kind"] == "key"]
    left.plot(
        [steps[index] for index in keys], [everything[index] for index in keys],
        "s", color=RED, label="key checkpoint",
    )  # fmt: skip
    for index, restore in enumerate(run["restores"]):
        label = None if index else "resumed from"
        left.axvline(restore["restored_step"], color=GREEN, linestyle=":", label=label)
    left.set(xlabel="step", ylabel="raw / stored", title="Ratio of each checkpoint")
    left.set_ylim(bottom=0)
    _legend(left)
    parts = {role: [_stored(entry, role) / 1e3 for entry in entries] for role in ROLE_COLOURS}
    _stacked(right, [str(step) for step in steps], parts, ROLE_COLOURS)
    right.set(xlabel="step", ylabel="stored (kB)", title="Bytes of each checkpoint")


def configurations(figure: Figure, run: Run) -> None:
    """The searched configuration of each checkpoint: one row an axis, its values as steps."""
    entries = [entry for entry in run["checkpoints"] if entry["config"]]
    names = list(dict.fromkeys(key for entry in entries for key in entry["config"]))
    told = {name: [str(entry["config"].get(name)) for entry in entries] for name in names}
    ladders = {name: sorted(set(values), key=_by_number) for name, values in told.items()}
    high = [1 + len(ladder) for ladder in ladders.values()] or [1]  # a value a line, and what is between rows
    figure.set_figheight(max(figure.get_figheight(), LINE * sum(high)))
    rows = figure.subplots(len(high), 1, sharex=True, squeeze=False, height_ratios=high)[:, 0]
    for axes, (name, ladder) in zip(rows, ladders.items(), strict=False):
        places = [ladder.index(value) for value in told[name]]
        axes.step([entry["step"] for entry in entries], places, where="mid", marker="o", color=BLUE)
        axes.set_yticks(range(len(ladder)), [_short(value) for value in ladder])
        axes.set_ylim(-0.5, len(ladder) - 0.5)
        axes.set_ylabel(name.replace("_", "\n"), rotation=0, ha="right", va="center")
    rows[0].set_title("Configuration of each checkpoint")
    rows[-1].set_xlabel("step")


def costs(figure: Figure, run: Run) -> None:
    """Left: where the stored bytes of the run went; right: where the time of each save went."""
    left, right = figure.subplots(1, 2, width_ratios=(1, 2))
    entries = run["checkpoints"]
    totals = {role: sum(_stored(entry, role) for entry in entries) / 1e6 for role in ROLE_COLOURS}
    left.bar(list(totals), list(totals.values()), color=list(ROLE_COLOURS.values()))
    left.set(ylabel="stored (MB)", title="Where bytes went")
    stages = {stage: [entry["seconds"].get(stage, 0.0) for entry in entries] for stage in STAGE_COLOURS}
    _stacked(right, [str(entry["step"]) for entry in entries], stages, STAGE_COLOURS)
    right.set(xlabel="step", ylabel="seconds", title="Where the time of each save went")


#: Plot name -> function that fills a figure.
PLOTS: Mapping[str, Callable[[Figure, Run], None]] = {
    "loss": loss,
    "sizes": sizes,
    "configurations": configurations,
    "costs": costs,
}


def _columns(points: list[list[float]]) -> tuple[list[float], list[float]]:
    return [point[0] for point in points], [point[1] for point in points]


def _stored(entry: Mapping[str, Any], role: str) -> float:
    return float(entry["parts"].get(role, {}).get("stored_bytes", 0))


def _stacked(
    axes: Axes, labels: list[str], parts: Mapping[str, list[float]], colours: Mapping[str, str]
) -> None:
    places = range(len(labels))
    bottom = [0.0] * len(labels)
    for name, heights in parts.items():
        axes.bar(places, heights, bottom=bottom, color=colours[name], label=name)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(places, labels, rotation=45, ha="right")
    _legend(axes)


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")


def _short(value: str) -> str:
    """A value as a label: of a fraction the digits that a reader can use.

    Example:
        >>> [_short(value) for value in ("1.034696", "7.04", "0.0005", "16", "bf16")]
        ['1.035', '7.04', '0.0005', '16', 'bf16']
    """
    try:
        return f"{float(value):.4g}" if "." in value else value
    except ValueError:
        return value


def _by_number(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), "")
    except ValueError:
        return (1, 0.0, text)
