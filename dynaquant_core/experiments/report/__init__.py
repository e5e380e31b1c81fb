"""What people read of an experiment: a table, plots, and one page that holds both."""

from __future__ import annotations

from dynaquant_core.experiments.report.ablation import ablation_parts
from dynaquant_core.experiments.report.comparison import seed_rows
from dynaquant_core.experiments.report.price import figure_text, has_restores, spread_lines
from dynaquant_core.experiments.report.spreadsheet import write_table
from dynaquant_core.experiments.report.table import summary
from dynaquant_core.experiments.report.write import write_report

__all__ = [
    "ablation_parts",
    "figure_text",
    "has_restores",
    "seed_rows",
    "spread_lines",
    "summary",
    "write_report",
    "write_table",
]
