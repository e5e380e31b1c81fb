"""Buckets of a change of the parameters: how far the loss moves without each, as a table and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynaquant_core.experiments.price import Run, varied_label
from dynaquant_core.experiments.report.palette import COLOURS
from dynaquant_core.experiments.report.table import Row, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["bucket_rows", "bucket_runs", "draw_buckets"]


def bucket_runs(runs: Sequence[Run]) -> list[Run]:
    """Those that measure buckets."""
    return [run for run in runs if run.get("buckets") is not None]


def bucket_rows(runs: Sequence[Run]) -> list[Row]:
    """A row for each change: the errors of its largest exponents, both signs together, and of the rest."""
    return [_bucket_row(run, change) for run in runs for change in run["buckets"]]


def _bucket_row(run: Run, change: dict[str, Any]) -> Row:
    by_rank = _by_rank(change["buckets"])
    told = {f"rank {rank}": number(error, digits=4) for rank, error in enumerate(by_rank[:6], 1)}
    rest = max((error for error in by_rank[6:] if error is not None), default=None)
    return {
        "model": run["model"] + varied_label(run),
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


def draw_buckets(canvas: Canvas, runs: Sequence[Run]) -> None:
    """The error of leaving out a bucket, by the rank of its exponent: a line a length of the change.

    Of the first run, and of the first iteration that its changes begin after; the title says which.
    """
    axes, run = canvas.add_subplot(), runs[0]
    first = run["buckets"][0]["after"]
    for index, change in enumerate(change for change in run["buckets"] if change["after"] == first):
        ranks = [(rank, e) for rank, e in enumerate(_by_rank(change["buckets"]), 1) if e]
        across, up = [rank for rank, _ in ranks], [error for _, error in ranks]
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(across, up, "o-", color=colour, label=f"{change['iterations']} iterations")
    axes.set(xlabel="rank of the exponent", ylabel="error", yscale="log")
    of_all = f" (the first of {len(runs)} runs)" if len(runs) > 1 else ""
    axes.set_title(
        f"Error of a change without a bucket, from iteration {first} on\n"
        f"{run['model']}{varied_label(run)}, seed {run['seed']}{of_all}"
    )
    axes.legend(frameon=False, fontsize="small")
