"""Rework of an experiment: what failures cost in iterations, and what stages of LC-Checkpoint save."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynaquant_core.experiments.price import Run, method_label, varied_label
from dynaquant_core.experiments.report.palette import GREY, looks
from dynaquant_core.experiments.report.table import Row, configuration, number, percent, size, times
from dynaquant_core.experiments.rework.interval import Interval, mean_interval, ratio_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = [
    "draw_rework",
    "failing_runs",
    "rework_rows",
    "stage_rows",
]

#: The method that the others are compared with.
OURS = "lc"

#: Which stages of it are added to which, by what is added.
ADDED = {"P": ("E", "EP"), "H": ("EP", "EPH")}

#: Settings of a grid that a place names in words of its own.
NAMED = frozenset(
    {"checkpoint_every", "steps", *(f"rework.{key}" for key in ("flat", "order", "repeats", "most"))}
)
#: How many words of a place are always said; the others where they tell settings apart.
ALWAYS = 3
#: So many labels of places fit beside each other.
SIDE_BY_SIDE = 4
#: One for each place.
MARKS = "os^DvPX*<>"


def failing_runs(runs: Sequence[Run]) -> list[Run]:
    """Those that count rework."""
    return [run for run in runs if run.get("rework") is not None]


def rework_rows(runs: Sequence[Run]) -> list[Row]:
    """A row for each method at each point, repeats of all seeds together.

    Args:
        runs: of `failing_runs`.
    """
    settings = _settings(runs)
    return [_row(alike, settings) for alike in settings]


def _settings(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that differ in their seed only."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        key = (*_training(run), method_label(run), str(run["point"]), run["interval_steps"])
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _training(run: Run) -> tuple[Any, ...]:
    """What two settings have in common whose repeats are the same failures of the same training."""
    rework = run["rework"]
    return (
        *(run[name] for name in ("model", "parameters", "data", "steps")),
        *(rework[name] for name in ("size", "repeats", "order", "most", "flat")),
        varied_label(run),
    )


def _row(alike: Sequence[Run], settings: Sequence[Sequence[Run]]) -> Row:
    run, rework = alike[0], alike[0]["rework"]
    seconds = {
        name: statistics.fmean(each["rework"]["seconds"][name] for each in alike)
        for name in ("iteration", "save")
    }
    return {
        "model": run["model"],
        "method": method_label(run) + varied_label(run),
        "point": configuration(run["point"]),
        "size": percent(rework["size"], digits=None),
        "every": str(run["interval_steps"]),
        "tensors": "one" if rework["flat"] else "as they are",
        "repeats": str(len(_iterations(alike))),
        "rework": interval_text(mean_interval(_iterations(alike))),
        f"x {OURS}": interval_text(_against(alike, settings)),
        "given up": str(sum(each["rework"]["given_up"] for each in alike)),
        "checkpoint": size(_mean(alike, "bytes_mean")),
        "of the model": percent(_mean(alike, "share")),
        "ratio": times(_mean(alike, "ratio")),
        "iteration (ms)": number(1e3 * seconds["iteration"], digits=1),
        "save (ms)": number(1e3 * seconds["save"], digits=1),
    }


def _mean(alike: Sequence[Run], name: str) -> float:
    """A figure of a run's rework over the seeds."""
    return statistics.fmean(run["rework"][name] for run in alike)


def _iterations(alike: Sequence[Run]) -> list[float]:
    return [count for run in alike for count in run["rework"]["iterations"]]


def _against(alike: Sequence[Run], settings: Sequence[Sequence[Run]]) -> Interval | None:
    """Rework over that of `OURS`, with all of its stages, at the same size and interval."""
    run = alike[0]
    if run["method"] == OURS or run["rework"]["size"] is None:
        return None
    for others in settings:
        same = _training(others[0]) == _training(run) and others[0]["interval_steps"] == run["interval_steps"]
        if same and method_label(others[0]) == OURS and len(_iterations(others)) == len(_iterations(alike)):
            return ratio_interval(_iterations(alike), _iterations(others))
    return None


def interval_text(interval: Interval | None) -> str:
    """A figure and its interval.

    Example:
        >>> interval_text(Interval(3.14, 2.5, 4.0)), interval_text(Interval(3.0)), interval_text(None)
        ('3.14 (2.50 to 4.00)', '3.00', '-')
    """
    if interval is None:
        return "-"
    ends = "" if interval.low is None else f" ({interval.low:.2f} to {interval.high:.2f})"
    return f"{interval.value:.2f}{ends}"


def stage_rows(runs: Sequence[Run]) -> list[Row]:
    """For each model and point of LC-Checkpoint: bytes of a checkpoint by its stages, and what each saves.

    Shares are of the model's bytes.  What P and H save is counted from E on, in this order.
    """
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        if run["method"] == OURS:
            key = (*_training(run), run["interval_steps"], run["seed"])
            groups.setdefault(key, []).append(run)
    found = [alike for alike in groups.values() if len({_stages(run) for run in alike}) > 1]
    return [_stage_row(_by_stages(alike, point)) for alike in found for point in _points(alike)]


def _stages(run: Run) -> str:
    return str(run["options"]["stages"])


def _points(alike: Sequence[Run]) -> list[str]:
    """The points at which something is promoted."""
    return list(dict.fromkeys(str(run["point"]) for run in alike if "P" in _stages(run)))


def _by_stages(alike: Sequence[Run], point: str) -> dict[str, Run]:
    """Runs at a point; those that promote nothing have the same bytes at any."""
    mine = [run for run in alike if "P" not in _stages(run) or str(run["point"]) == point]
    return {_stages(run): run for run in sorted(mine, key=lambda run: "P" not in _stages(run))}


def _stage_row(found: dict[str, Run]) -> Row:
    run = next(iter(found.values()))  # one that promotes
    saved = {stages: 1 - each["rework"]["share"] for stages, each in found.items()}
    row = {"model": run["model"], "point": configuration(run["point"]), "seed": str(run["seed"])}
    row |= {stages: _told(found.get(stages)) for stages in ("E", "EP", "EH", "EPH")}
    row["E saves"] = percent(saved.get("E"))
    for stage, (before, after) in ADDED.items():
        both = before in saved and after in saved
        row[f"{stage} adds"] = percent(saved[after] - saved[before], signed=True) if both else "-"
    return row


def _told(run: Run | None) -> str:
    if run is None:
        return "-"
    return f"{size(run['rework']['bytes_mean'])}, {times(run['rework']['ratio'])}"


def draw_rework(canvas: Canvas, runs: Sequence[Run]) -> None:
    """Left: rework of each method at each place, with intervals; right: the same over bytes stored.

    A place is all that two settings of a method may differ in; on the right each has a mark of its own.
    """
    left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
    settings = _settings(runs)
    how, places = looks([alike[0] for alike in settings], method_label), _places(settings)
    width = 0.8 / len(how)
    for index, (name, look) in enumerate(how.items()):
        mine = [alike for alike in settings if method_label(alike[0]) == name]
        at = [list(places).index(_place(alike[0])) for alike in mine]
        values, errors = _bars(mine)
        across = [place + (index - (len(how) - 1) / 2) * width for place in at]
        left.bar(across, values, width, yerr=errors, color=look.colour, ecolor="#333333", label=name)
        shares = [100 * _mean(alike, "share") for alike in mine]
        for x, y, low, high, place in zip(shares, values, *errors, at, strict=True):
            right.errorbar(x, y, [[low], [high]], fmt=MARKS[place % len(MARKS)], color=look.colour)
    labels = list(places.values())
    left.set_xticks(range(len(labels)), labels, fontsize="small")
    left.tick_params(axis="x", rotation=90 if len(labels) > SIDE_BY_SIDE else 0)
    left.set(ylabel="iterations", title="Rework after a failure (95%)")
    left.legend(frameon=False, fontsize="small")
    right.set(xlabel="stored (% of the model)", ylabel="iterations", title="and at which size")
    right.set_xlim(0, 1.05 * right.dataLim.x1)
    for place, told in enumerate(labels):
        right.plot([], [], MARKS[place % len(MARKS)], color=GREY, label=told.replace("\n", ", "))
    if len(labels) > 1:
        right.legend(frameon=False, fontsize="x-small", loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _bars(settings: Sequence[Sequence[Run]]) -> tuple[list[float], list[list[float]]]:
    """Mean rework of each setting, and how far its interval reaches below and above it."""
    means = [mean_interval(_iterations(alike)) or Interval(0.0) for alike in settings]
    below = [figure.value - (figure.value if figure.low is None else figure.low) for figure in means]
    above = [(figure.value if figure.high is None else figure.high) - figure.value for figure in means]
    return [figure.value for figure in means], [below, above]


def _place(run: Run) -> tuple[str, ...]:
    """All that tells runs of a method apart beside their seed, in words: what always, then what may."""
    rework = run["rework"]
    size = configuration(run["point"]) if rework["size"] is None else percent(rework["size"], digits=None)
    varied = {key: value for key, value in run.get("varied", {}).items() if key not in NAMED}
    return (
        run["model"],
        size,
        "" if rework["flat"] else "by tensor",
        f"every {run['interval_steps']}",
        f"{rework['order']} batches",
        f"repeats {rework['repeats']}",
        f"at most {rework['most']}",
        f"{run['steps']} steps",
        f"{run['parameters']:,} parameters",
        str(run["data"]),
        varied_label({"varied": varied}).removeprefix(", "),
    )


def _places(settings: Sequence[Sequence[Run]]) -> dict[tuple[str, ...], str]:
    """Each place and its label: the first words of `_place`, and those that differ within the model."""
    places = list(dict.fromkeys(_place(alike[0]) for alike in settings))
    found = {}
    for place in places:
        columns = zip(*(other for other in places if other[0] == place[0]), strict=True)
        differing = [len(set(column)) > 1 for column in columns]
        told = [part for index, part in enumerate(place) if index < ALWAYS or differing[index]]
        found[place] = "\n".join(part for part in told if part)
    return found
