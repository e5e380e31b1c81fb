"""What an experiment is made of: YAML read into frozen, validated sections; unknown keys are errors."""

from __future__ import annotations

from dynaquant_core.experiments.config.experiment import Experiment, validate
from dynaquant_core.experiments.config.grid import expand
from dynaquant_core.experiments.config.source import load_experiment, shipped_configs

__all__ = ["Experiment", "expand", "load_experiment", "shipped_configs", "validate"]
