"""``dynaquant bench``: every stage against its floor and the off-the-shelf alternative."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any

import typer

from dynaquant_core.cli.messages import raise_volume, say
from dynaquant_core.cli.output import Json, emit, print_table
from dynaquant_core.errors import ConfigError
from dynaquant_core.methods.registry import DEFAULT_METHOD

__all__ = ["bench", "count"]

#: Digits, perhaps with a point between.
DECIMAL = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30})?")
#: The largest number that is understood; no machine holds a model of so many parameters.
MOST = 10**18
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9}
COLUMNS = (
    "<stage",
    "parameters",
    "threads",
    "<device",
    "seconds",
    "x floor",
    "MB/s",
    "<against",
    "faster",
    "<note",
)


def bench(
    sizes: Annotated[
        str, typer.Option(help="Parameters, as 1M,10M; 100M may be asked for too.")
    ] = "1M,10M,50M",
    threads: Annotated[str, typer.Option(help="Thread counts, as 1,2.")] = "1,2",
    method: Annotated[str, typer.Option(help="For saves and loads: lattice or dynaquant.")] = DEFAULT_METHOD,
    device: Annotated[str, typer.Option(help="Where the weights lie: all, cpu or cuda.")] = "all",
    as_json: Json = False,
) -> None:
    """Measure every stage, as ratios to a floor taken in the same process."""
    counts = [count(word) for word in sizes.split(",")]
    workers = [count(word) for word in threads.split(",")]
    raise_volume()
    from dynaquant_core.experiments.bench import run_bench

    result = run_bench(counts, workers, method=method, device=device, progress=say)
    if as_json:
        emit(result)
        return
    print_table("stages", COLUMNS, [row_text(row) for row in result["rows"]])
    for title in ("process", "environment"):
        print_table(title, ("<what", "<value"), list(facts(result[title])))


def row_text(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One measurement as the cells of the table."""
    return (
        row["stage"],
        f"{row['parameters']:,}",
        str(row["threads"]),
        row["device"],
        figure(row["seconds"]),
        figure(row["floor_ratio"]),
        figure(row["megabytes_per_second"]),
        row["against"] or "-",
        "-" if row["speedup"] is None else f"{row['speedup']:.3g}x",
        row["note"],
    )


def facts(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values for people, those of inner mappings behind the name of theirs.

    Example:
        >>> list(facts({"adam": {"save_seconds": [0.25, 0.125], "parameters": 12}}))
        [('adam, save seconds', '0.25, 0.125'), ('adam, parameters', '12')]
    """
    for name, value in told.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}, {inner}", text) for inner, text in facts(value))
        else:
            yield name.replace("_", " "), figure(value)


def figure(value: Any) -> str:
    """Three significant digits of a number, the text of anything else, a dash for nothing."""
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(figure, value))
    return f"{value:,.3g}" if isinstance(value, float) else str(value)


def count(text: str) -> int:
    """A positive whole number, perhaps with k, M or G behind it.

    Example:
        >>> count("10M"), count("3.2k"), count("2")
        (10000000, 3200, 2)
    """
    word = text.strip().lower()
    factor = SUFFIXES.get(word[-1:], 1)
    digits = word[:-1] if factor > 1 else word
    number = Fraction(digits) * factor if DECIMAL.fullmatch(digits) else Fraction(0)
    if number.denominator != 1 or not 0 < number <= MOST:
        raise ConfigError(
            f"{text!r} is not a positive whole number such as 2, 300k or 3.2M, at most {MOST:.0e}; "
            "separate several by commas."
        )
    return int(number)
