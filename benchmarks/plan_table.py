"""Writes the figures that `dynaquant plan` shows, from results.json files of experiments with restores.

Rows of other settings that the file holds already stay; those of the same setting are replaced, but for such
of more seeds.  The device makes no other setting, as none to `dynaquant plan`.

    python benchmarks/plan_table.py docs/comparison/train.json docs/comparison/replay.json \
        --methods lattice dynaquant "dynaquant profile=paper" --moments 8bit
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dynaquant_core.experiments.plan import SHIPPED, read_figures, read_prices
from dynaquant_core.experiments.price import Price

#: What makes two rows the same setting.
SETTING = ("model", "parameters", "data", "method", "moments", "threshold", "interval", "restores")

#: Digits that are kept: the spread over seeds is far above them.
DIGITS = 5


def setting(row: Price) -> tuple[Any, ...]:
    """What was measured, in the digits that the file keeps."""
    return tuple(rounded(getattr(row, name)) for name in SETTING)


def rounded(value: Any) -> Any:
    """The same data with numbers that a person can read."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def main() -> None:
    """Reads, merges, writes; runs that somebody interrupted beside their planned failures are left out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=SHIPPED)
    parser.add_argument("--methods", nargs="+", help="as results name them; all others are left out")
    parser.add_argument("--moments", nargs="+", help="the same of moments")
    parser.add_argument("--fresh", action="store_true", help="drop what the file holds already")
    arguments = parser.parse_args()
    kept = [] if arguments.fresh or not arguments.output.exists() else read_figures(arguments.output)
    rows = {setting(row): row for row in kept}
    for path in arguments.results:
        for row in read_prices(path):
            wanted = all(
                chosen is None or value in chosen
                for chosen, value in ((arguments.methods, row.method), (arguments.moments, row.moments))
            )
            before = rows.get(setting(row))
            if wanted and not row.unplanned and (before is None or len(before.seeds) <= len(row.seeds)):
                rows[setting(row)] = row
    lines = ",\n  ".join(json.dumps(rounded(asdict(row))) for row in rows.values())
    arguments.output.write_text(f'{{"format": 1, "rows": [\n  {lines}\n]}}\n', encoding="utf-8")
    print(f"{arguments.output}: {len(rows)} settings")


if __name__ == "__main__":
    main()
