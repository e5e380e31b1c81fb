"""``dynaquant run``: an experiment from YAML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from dynaquant_core.cli.messages import raise_volume
from dynaquant_core.cli.output import Json, emit, print_table, write_line
from dynaquant_core.cli.progress import Watch, watching
from dynaquant_core.experiments import (
    Progress,
    ablation_parts,
    run_experiment,
    seed_rows,
    spread_lines,
    summary,
)

__all__ = ["run"]


def run(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file, or a name that ships.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY.SUB=VALUE]...", help="As threshold=0.05.")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", "-j", min=1, help="Processes at a time; each gets its share of the threads."),
    ] = 1,
    as_json: Json = False,
) -> None:
    """Train, kill, resume, measure; results, table and plots go to the output folder."""
    raise_volume()
    with watching() as watch:
        results = run_experiment(config, overrides or (), lambda progress: follow(watch, progress), jobs=jobs)
    if as_json:
        emit(results.data)
        return
    print_rows(config, summary(results))
    if together := seed_rows(results.data["runs"]):
        print_rows("mean and spread over seeds", together)
    for part in ablation_parts(results.data["runs"]):
        print_rows(part.title, part.rows)
    if len(results.data["runs"]) > 1:
        for line in spread_lines(results.data["runs"]):
            write_line(line)
    write_line(f"results: {results.path}")
    for page in sorted(results.path.parent.glob("*.html")):
        write_line(f"page: {page}")


def follow(watch: Watch, progress: Progress) -> None:
    """Passes on where a run is."""
    loss = "" if progress.loss is None else f"loss {progress.loss:.4f}"
    watch.show(
        progress.run, progress.step, progress.steps, progress.message or loss, now=bool(progress.message)
    )


def print_rows(title: str, rows: Sequence[dict[str, str]]) -> None:
    """One table of rows that may differ in their columns; a single row stands upright, to fit a terminal."""
    if len(rows) == 1:
        print_table(title, ("<what", "<value"), list(rows[0].items()))
        return
    columns = list(dict.fromkeys(key for row in rows for key in row))
    print_table(title, columns, [[row.get(column, "-") for column in columns] for row in rows])
