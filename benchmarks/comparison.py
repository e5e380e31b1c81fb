"""Puts the comparison where the README can link it: tables in Markdown, slim results, the page.

    make comparison
    python benchmarks/comparison.py runs/comparison_replay runs/comparison_train

Of each folder that `dynaquant run` filled it writes ``docs/comparison/NAME.json``, results.json without loss
curves and with numbers of five digits, and ``NAME.html``, its page with the plots of all runs together; and
prints the table, mean and spread over seeds, in Markdown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynaquant_core.experiments.report.comparison import comparison_rows
from dynaquant_core.experiments.report.page import page
from dynaquant_core.experiments.results import Results

#: Digits that a reader can use.
DIGITS = 5

#: Loss curves: the page shows them, and they are most of the bytes.
CURVES = ("curves", "baseline_curve")


def slim(value: Any) -> Any:
    """The same data with floats of `DIGITS` digits.

    Example:
        >>> slim({"a": [0.123456789, 3]})
        {'a': [0.12346, 3]}
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: slim(inner) for key, inner in value.items()}
    return [slim(inner) for inner in value] if isinstance(value, list) else value


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """A table of rows that have the same columns; those that say nothing are left out.

    Example:
        >>> print(markdown([{"a": "1", "b": "-"}]))
        | a |
        |---|
        | 1 |
    """
    titles = [title for title in rows[0] if any(row.get(title, "-") != "-" for row in rows)]
    lines = [titles, *([row.get(title, "-") for title in titles] for row in rows)]
    told = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([told[0], "|---" * len(titles) + "|", *told[1:]])


def publish(folder: Path, output: Path) -> str:
    """Writes the two files of a finished run of the comparison; returns its table."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    left_out = {*CURVES, *_of_all(results["runs"])}
    runs = [{key: run[key] for key in run if key not in left_out} for run in results["runs"]]
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{folder.name.removeprefix('comparison_')}.json"
    text = json.dumps(slim({**results, "runs": runs}), separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")
    path.with_suffix(".html").write_text(_page(folder, results), encoding="utf-8")
    return f"{len(runs)} runs, {path} {path.stat().st_size // 1000} kB\n\n{markdown(comparison_rows(runs))}\n"


def _of_all(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """``machines`` where one machine made all runs: the environment names it once."""
    made_on = [run.get("machines") for run in runs]
    return ["machines"] if all(one == made_on[0] for one in made_on) else []


def _page(folder: Path, results: Mapping[str, Any]) -> str:
    """The page of a finished run, with the plots of all its runs; those of each would be megabytes."""
    drawn = {path.stem: path.read_bytes() for path in sorted((folder / "plots").glob("*.png"))}
    together = {name: image for name, image in drawn.items() if not name.startswith("run-")}
    return page(Results(folder / "results.json", dict(results)), [{} for _ in results["runs"]], together)


def main() -> None:
    """Publishes the folders that are named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, default=Path("docs/comparison"))
    arguments = parser.parse_args()
    for folder in arguments.folders:
        if not (folder / "report.html").is_file():
            parser.error(f"{folder} has no report.html: let `dynaquant run` finish there first.")
    for folder in arguments.folders:
        print(publish(folder, arguments.output))


if __name__ == "__main__":
    main()
