"""Experiments: from a YAML file to results, plots and one page.

The file describes a training run, how it is saved and when it is killed.  `run_experiment` trains it in
processes of their own, kills them with SIGKILL, resumes them, and writes down what every checkpoint cost and
lost; `summary` turns that into the rows of a table.
"""

from __future__ import annotations

from dynaquant_core.experiments.config import shipped_configs
from dynaquant_core.experiments.report import ablation_parts, seed_rows, spread_lines, summary
from dynaquant_core.experiments.results import Results
from dynaquant_core.experiments.runner import run_experiment
from dynaquant_core.experiments.supervisor import Progress

__all__ = [
    "Progress",
    "Results",
    "ablation_parts",
    "run_experiment",
    "seed_rows",
    "shipped_configs",
    "spread_lines",
    "summary",
]
