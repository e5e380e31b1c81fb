"""``dynaquant plan``: what a threshold buys, when the run will be restored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dynaquant_core.cli.bench import count
from dynaquant_core.cli.output import Json, counted, emit, print_table, share, size, write_line
from dynaquant_core.experiments.plan import FAR, Option, Wish, nearest_options, read_figures, read_prices
from dynaquant_core.experiments.price import LAW, LAW_RANGE, Price
from dynaquant_core.experiments.report import figure_text

__all__ = ["plan"]

#: The moments that need no word.
USUAL = "8bit"

COLUMNS = (
    "<method",
    "threshold",
    "measured at",
    "ratio",
    "stale",
    "noise",
    "expected cost",
    "measured cost",
    "stored",
)


def share_of(word: str) -> float:
    """A share, as 0.02 or 2%.

    Example:
        >>> share_of("0.02"), share_of("2%")
        (0.02, 0.02)
    """
    try:
        return float(word.removesuffix("%")) / 100 if word.endswith("%") else float(word)
    except ValueError:
        raise typer.BadParameter(f"{word!r} is no share: give 0.02 or 2%.") from None


def plan(
    restores: Annotated[int, typer.Option(metavar="K", help="How often the run will be restored.")],
    interval: Annotated[
        str, typer.Option(metavar="I", help="Between checkpoints, a share of the training: 0.02 or 2%.")
    ],
    threshold: Annotated[
        str | None, typer.Option(metavar="T", help="Of a checkpoint, 0.01 or 1%; default: all measured.")
    ] = None,
    params: Annotated[
        str | None, typer.Option(metavar="N", help="Parameters of the model, as 124M: adds bytes.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your own results.json instead of shipped figures.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a threshold buys: the ratio measured nearest to it, and what the restores should cost."""
    wish = Wish(
        restores,
        share_of(interval),
        None if threshold is None else share_of(threshold),
        None if params is None else count(params),
    )
    found = nearest_options(wish, read_figures() if results is None else read_prices(results))
    if as_json:
        emit({"restores": restores, "interval": wish.interval, "lost": wish.lost, "options": found})
        return
    show_options(wish, found)


def show_options(wish: Wish, found: Sequence[Option]) -> None:
    """A table for each model that figures were measured on, and what to make of it."""
    write_line(
        f"planned: {counted(wish.restores, 'restore')}, {counted(wish.checkpoints, 'checkpoint')}, "
        f"one every {wish.interval:.3g} of the training"
    )
    places: dict[str, list[Option]] = {}
    for option in found:
        places.setdefault(place(option.measured), []).append(option)
    for where, options in places.items():
        devices = ", ".join(sorted({option.measured.device for option in options}))
        print_table(f"measured on {where}, {devices}", COLUMNS, [row(option) for option in options])
        floors = [option.measured.floor for option in options if option.measured.floor is not None]
        write_line(chance(max(floors, default=None)))
    if any(option.far for option in found):
        write_line(f"*: measured at over {FAR:g} times another interval or number of restores: a rough hint")
    low, high = LAW_RANGE
    write_line(
        f"expected cost: stale x {wish.lost:.3g} (the training between restores) x {LAW:.0%}, in brackets x "
        f"{low:.0%} to {high:.0%}; measured cost: of the run in 'measured at'"
    )
    write_line("noise that training does not heal costs beside it, at most about the threshold a restore")
    write_line(
        "your model will differ: measure it with `dynaquant run`, and give its results.json as --results"
    )


def chance(floor: float | None) -> str:
    """Which costs say nothing."""
    if floor is None:
        return "one seed: costs below about half a percent cannot be told from chance"
    return (
        f"uninterrupted runs of other seeds have a standard deviation of {floor:.2%}: a cost below twice "
        "that cannot be told from chance"
    )


def place(entry: Price) -> str:
    """What the figures were measured on, whichever device it was."""
    return f"{entry.model} ({entry.parameters:,} parameters, {entry.data})"


def row(option: Option) -> tuple[str, ...]:
    """One line of the table."""
    entry = option.measured
    return (
        entry.method if entry.moments == USUAL else f"{entry.method}, moments {entry.moments}",
        share(entry.threshold),
        f"{entry.interval:.1%}, k = {entry.kills}, {seeds_text(len(entry.seeds))}{' *' * option.far}",
        figure_text(entry.ratio, "{:.1f}x"),
        figure_text(entry.stale, "{:.3f}"),
        figure_text(entry.noise, "{:.2g}"),
        expected(option),
        figure_text(entry.cost, "{:+.2%}"),
        "-" if option.stored is None else size(int(option.stored)),
    )


def expected(option: Option) -> str:
    """The law's word, with its range."""
    if option.cost is None or option.cost_range is None:
        return "-"
    low, high = option.cost_range
    return f"{option.cost:.2%} ({low:.2%} to {high:.2%})"


def seeds_text(count: int) -> str:
    """How many seeds.

    Example:
        >>> seeds_text(1), seeds_text(3)
        ('1 seed', '3 seeds')
    """
    return f"{count} seed" if count == 1 else f"{count} seeds"
