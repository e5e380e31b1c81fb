"""results.csv: a row a run, for people who compute further."""

from __future__ import annotations

import csv
import io
from typing import Any

from dynaquant_core.errors import StorageError
from dynaquant_core.experiments.figures import NUMBERS, WORDS, figures, words
from dynaquant_core.experiments.results import Results

__all__ = ["table_text", "write_table"]


def write_table(results: Results) -> None:
    """Writes ``results.csv`` beside results.json.

    Raises:
        StorageError: the system refuses.
    """
    path = results.path.with_suffix(".csv")
    try:
        path.write_text(table_text(results.data["runs"]), encoding="utf-8", newline="")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}.") from None


def table_text(runs: list[dict[str, Any]]) -> str:
    """The table, a header first; a figure that does not exist is an empty field.

    Example:
        >>> table_text([]).split(",")[:3]
        ['folder', 'kind', 'model']
    """
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["folder", *WORDS, *NUMBERS])
    for run in runs:
        named, numbers = words(run), figures(run)
        table.writerow([run.get("folder"), *(named[name] for name in WORDS), *(numbers[n] for n in NUMBERS)])
    return text.getvalue()
