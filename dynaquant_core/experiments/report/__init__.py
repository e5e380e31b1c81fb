"""What people read of an experiment: a table, plots, and one page that holds both."""

from __future__ import annotations

from dynaquant_core.experiments.report.price import figure_text, has_restores, spread_line
from dynaquant_core.experiments.report.table import summary
from dynaquant_core.experiments.report.write import write_report

__all__ = ["figure_text", "has_restores", "spread_line", "summary", "write_report"]
