"""``dynaquant verify``: reads everything back and says what is wrong with it."""

from __future__ import annotations

from typing import Annotated

import typer

from dynaquant_core.cli.output import Json, counted, emit, print_table, write_line
from dynaquant_core.cli.progress import working
from dynaquant_core.cli.source import PathArgument, open_source

__all__ = ["verify"]


def verify(
    path: PathArgument,
    deep: Annotated[bool, typer.Option("--deep", help="Decode every checkpoint as well.")] = False,
    as_json: Json = False,
) -> None:
    """Check every file; exit status 1 if anything is wrong."""
    source = open_source(path)
    with working(f"verifying {path}"):
        problems = [" ".join(str(problem).split()) for problem in source.verify(deep=deep)]
    if as_json:
        emit({"path": str(path), "deep": deep, "good": not problems, "problems": problems})
    elif problems:
        print_table(
            f"{path}: {counted(len(problems), 'problem')}",
            ("<problem",),
            [(problem,) for problem in problems],
        )
    else:
        write_line(f"{path}: good, {source.checked()} checked")
    if problems:
        raise typer.Exit(1)
