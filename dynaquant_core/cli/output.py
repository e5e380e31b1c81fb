"""Results on stdout: tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from dynaquant_core.errors import StorageError

__all__ = [
    "Json",
    "brief_config",
    "config_text",
    "counted",
    "emit",
    "plain",
    "print_table",
    "result",
    "share",
    "size",
    "times",
    "write_line",
]

#: ``--json`` of every command that prints a table.
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

#: Letters that a column which may fold has at least.
FOLDED = 12
#: Columns of a table that goes into a file or a pipe, where there is no width to ask for.
WIDTH_OF_A_PIPE = 160
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


@contextmanager
def result() -> Iterator[TextIO]:
    """Standard output, made whole behind the block.

    Raises:
        StorageError: there is none (a daemon closed it), or where it goes the system refuses (a full disk).
        BrokenPipeError: its reader has seen enough.
    """
    out: TextIO | None = sys.stdout  # None where the process was started without
    if out is None:
        raise StorageError("There is no standard output for the result; send it to a file or to /dev/null.")
    if isinstance(out, TextIOWrapper):  # a terminal of few letters gets the others as \\xe9
        out.reconfigure(errors="backslashreplace")
    try:
        yield out
        out.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(
            f"Cannot write the result to standard output: {error.strerror or error}; send it elsewhere."
        ) from error


def write_line(text: str) -> None:
    """One line of result."""
    with result() as out:
        out.write(f"{text}\n")


def emit(data: Any) -> None:
    """Prints ``data`` as JSON; anything `plain` understands."""
    write_line(json.dumps(plain(data), indent=2, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of text under named columns; a name that begins with ``<`` aligns left, and may fold.

    Where a terminal has no room for the columns, each row is a paragraph of names and values.
    """
    rows = [[escaped(cell) for cell in row] for row in rows]
    with result() as out:
        width = None if out.isatty() else WIDTH_OF_A_PIPE
        console = Console(file=out, width=width, highlight=False)
        heading = Text(escaped(title), style="bold")
        console.print(heading, soft_wrap=True)  # on its own: a narrow table would fold it
        if least_width(columns, rows) > console.width:
            for row in rows:
                told = (f"{name.lstrip('<')} {cell}" for name, cell in zip(columns, row, strict=True))
                console.print(Text(", ".join(told)))
            return
        table = Table(header_style="bold")
        for name in columns:
            left = name.startswith("<")
            justify: JustifyMethod = "left" if left else "right"
            table.add_column(Text(name.lstrip("<")), justify=justify, overflow="fold", no_wrap=not left)
        for row in rows:
            table.add_row(*map(Text, row))  # letter by letter, where a string may hold markup
        console.print(table)


def escaped(text: str) -> str:
    """A text with an escape for each letter that moves the cursor or cannot be seen, so that a row stays one.

    Example:
        >>> len(escaped("tab" + chr(9))), escaped("user:id:")
        (5, 'user:id:')
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def least_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Of a table whose numbers are whole; what aligns left may fold down to `FOLDED` letters.

    Example:
        >>> least_width(("<name", "bytes"), [("a" * 50, "1.2 kB")])
        25
    """
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    folded = [
        min(width, FOLDED) if name.startswith("<") else width
        for name, width in zip(columns, widths, strict=True)
    ]
    return sum(folded) + 3 * len(columns) + 1


def counted(number: int, noun: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "checkpoint"), counted(2, "checkpoint")
        ('1 checkpoint', '2 checkpoints')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def plain(value: Any) -> Any:
    """Turns dataclasses, mappings, sequences and paths into JSON's types; non-finite numbers become null.

    Example:
        >>> plain({"a": (1, float("nan")), 2: {"b"}})
        {'a': [1, None], '2': ['b']}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def size(count: int) -> str:
    """Bytes for a reader, in powers of 1000.

    Example:
        >>> size(999), size(1234), size(45_600_000), size(999_999)
        ('999 B', '1.23 kB', '45.6 MB', '1 MB')
    """
    if abs(count) < 1000:
        return f"{count} B"
    rounded = abs(float(f"{count:.3g}"))  # before its unit is chosen: 999,999 is a million
    power = min((len(str(int(rounded))) - 1) // 3, len(UNITS) - 1)
    return f"{count / 1000**power:.3g} {UNITS[power]}"


def share(value: float | None, digits: int = 2) -> str:
    """A share as a percentage; a dash where it is not known.

    Example:
        >>> share(0.0123), share(None)
        ('1.23%', '-')
    """
    return "-" if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}%"


def times(raw: int, stored: int) -> str:
    """How many times smaller; a dash where nothing is stored.

    Example:
        >>> times(1000, 80), times(10, 0)
        ('12.5x', '-')
    """
    return f"{raw / stored:.1f}x" if stored else "-"


def brief_config(config: Any) -> str:
    """Its first setting, and those that are not as they come, or follow from it: one cell of a table.

    Example:
        >>> from dynaquant_core.config import Config
        >>> brief_config(Config(bins=8, prune=0.2)), brief_config(Config(bins=8, embedding_bins=32))
        ('bins=8 prune=0.2', 'bins=8 embedding_bins=32')
    """
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config_text(config)
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    first = dict(list(settings.items())[:1])
    bare = config.__class__(**first)
    told = first | {name: value for name, value in settings.items() if value != getattr(bare, name)}
    return " ".join(f"{name}={value}" for name, value in told.items()) or "-"


def config_text(config: Any) -> str:
    """A configuration on one line: its settings, or its method's word for it."""
    data = config.as_dict() if hasattr(config, "as_dict") else config
    if not isinstance(data, Mapping):
        return "-" if data is None else str(data)
    return " ".join(f"{key}={value}" for key, value in data.items()) or "-"
