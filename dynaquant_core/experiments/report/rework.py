"""Rework of an experiment: what failures cost in iterations, what stages save, which buckets matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynaquant_core.experiments.price import Run, method_label, varied_label
from dynaquant_core.experiments.report.palette import COLOURS, looks
from dynaquant_core.experiments.report.table import Row, configuration, number, percent, size, times
from dynaquant_core.experiments.rework.interval import Interval, mean_interval, ratio_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = [
    "bucket_rows",
    "bucket_runs",
    "draw_buckets",
    "draw_rework",
    "failing_runs",
    "rework_rows",
    "stage_rows",
]

#: The method that the others are compared with.
OURS = "lc"

#: Which stages of it are added to which, by what is added.
ADDED = {"P": ("E", "EP"), "H": ("EP", "EPH")}


def failing_runs(runs: Sequence[Run]) -> list[Run]:
    """Those that count rework."""
    return [run for run in runs if run.get("rework") is not None]


def bucket_runs(runs: Sequence[Run]) -> list[Run]:
    """Those that measure buckets."""
    return [run for run in runs if run.get("buckets") is not None]


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
        *(rework[name] for name in ("size", "repeats", "order", "flat")),
        varied_label(run),
    )


def _row(alike: Sequence[Run], settings: Sequence[Sequence[Run]]) -> Row:
    run, rework = alike[0], alike[0]["rework"]
    seconds = rework["seconds"]
    return {
        "model": run["model"],
        "method": method_label(run) + varied_label(run),
        "point": configuration(run["point"]),
        "size": percent(rework["size"], digits=0),
        "every": str(run["interval_steps"]),
        "tensors": "one" if rework["flat"] else "as they are",
        "repeats": str(len(_iterations(alike))),
        "rework": interval_text(mean_interval(_iterations(alike))),
        f"x {OURS}": interval_text(_against(alike, settings)),
        "given up": str(sum(each["rework"]["given_up"] for each in alike)),
        "checkpoint": size(rework["bytes_mean"]),
        "of the model": percent(rework["share"]),
        "ratio": times(rework["ratio"]),
        "iteration (ms)": number(1e3 * seconds["iteration"], digits=1),
        "save (ms)": number(1e3 * seconds["save"], digits=1),
    }


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


def bucket_rows(runs: Sequence[Run]) -> list[Row]:
    """A row for each change: the errors of its largest exponents, both signs together, and of the rest."""
    return [_bucket_row(run, change) for run in runs for change in run["buckets"]]


def _bucket_row(run: Run, change: dict[str, Any]) -> Row:
    by_rank = _by_rank(change["buckets"])
    told = {f"rank {rank}": number(error, digits=4) for rank, error in enumerate(by_rank[:6], 1)}
    rest = max((error for error in by_rank[6:] if error is not None), default=None)
    return {
        "model": run["model"],
        "seed": str(run["seed"]),
        "after": str(change["after"]),
        "iterations": str(change["iterations"]),
        "buckets": str(len(change["buckets"])),
        **told,
        "largest of the rest": number(rest, digits=4),
    }


def _by_rank(buckets: Sequence[dict[str, Any]]) -> list[float | None]:
    """The larger error of the two signs, by falling exponent."""
    found: dict[int, list[float]] = {}
    for bucket in buckets:
        found.setdefault(bucket["exponent"], [])
        if bucket["error"] is not None:
            found[bucket["exponent"]].append(bucket["error"])
    return [max(found[exponent], default=None) for exponent in sorted(found, reverse=True)]


def draw_rework(canvas: Canvas, runs: Sequence[Run]) -> None:
    """Left: rework of each method by model and point, with intervals; right: the same over bytes stored."""
    left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
    settings = _settings(runs)
    how = looks([alike[0] for alike in settings])
    places = list(dict.fromkeys(_place(alike[0]) for alike in settings))
    width = 0.8 / len(how)
    for index, (name, look) in enumerate(how.items()):
        mine = [alike for alike in settings if method_label(alike[0]) == name]
        means = [mean_interval(_iterations(alike)) or Interval(0.0) for alike in mine]
        errors = [
            [figure.value - (figure.value if figure.low is None else figure.low) for figure in means],
            [(figure.value if figure.high is None else figure.high) - figure.value for figure in means],
        ]
        across = [places.index(_place(alike[0])) + (index - (len(how) - 1) / 2) * width for alike in mine]
        values = [figure.value for figure in means]
        left.bar(across, values, width, yerr=errors, color=look.colour, ecolor="#333333", label=name)
        shares = [100 * alike[0]["rework"]["share"] for alike in mine]
        right.errorbar(shares, values, yerr=errors, fmt="o", color=look.colour, label=name)
    left.set_xticks(range(len(places)), places, fontsize="small")
    left.set(ylabel="iterations", title="Rework after a failure (95%)")
    left.legend(frameon=False, fontsize="small")
    right.set(xlabel="stored (% of the model)", ylabel="iterations", title="and at which size")
    right.set_xlim(left=0)


def _place(run: Run) -> str:
    rework = run["rework"]
    what = configuration(run["point"]) if rework["size"] is None else f"{rework['size']:.0%}"
    return f"{run['model']}\n{what}" + ("" if rework["flat"] else "\nby tensor")


def draw_buckets(canvas: Canvas, runs: Sequence[Run]) -> None:
    """The error of leaving out a bucket, by the rank of its exponent: a line a length of the change."""
    axes = canvas.add_subplot()
    first = runs[0]["buckets"][0]["after"]
    for index, change in enumerate(change for change in runs[0]["buckets"] if change["after"] == first):
        ranks = [(rank, e) for rank, e in enumerate(_by_rank(change["buckets"]), 1) if e]
        across, up = [rank for rank, _ in ranks], [error for _, error in ranks]
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(across, up, "o-", color=colour, label=f"{change['iterations']} iterations")
    axes.set(xlabel="rank of the exponent", ylabel="error", yscale="log")
    axes.set_title(f"Error of a change without a bucket, from iteration {first} on")
    axes.legend(frameon=False, fontsize="small")
