"""Draws what restores cost over several experiments, as their report pages do for one, and prints the table.

python benchmarks/price_plot.py runs/restore_gpt_*/results.json -o docs/price_gpt.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dynaquant_core.experiments.plan import read_prices
from dynaquant_core.experiments.report.plots import png
from dynaquant_core.experiments.report.price import draw_price, price_rows, spread_lines


def main() -> None:
    """Reads, draws, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    rows = price_rows([entry for path in arguments.results for entry in read_prices(path)])
    runs = [run for path in arguments.results for run in json.loads(path.read_text(encoding="utf-8"))["runs"]]
    arguments.output.write_bytes(png(draw_price, runs))
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    Console(width=180).print(table)
    print(
        f"{'; '.join(spread_lines(runs))}; {arguments.output}: {arguments.output.stat().st_size // 1000} kB"
    )


if __name__ == "__main__":
    main()
