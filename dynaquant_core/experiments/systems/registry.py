"""The table of systems by their section."""

from __future__ import annotations

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.systems import PrunedSystem, SamoSystem, SmaqSystem, TwoBitSystem
from dynaquant_core.experiments.systems.activations import Coded
from dynaquant_core.experiments.systems.base import System
from dynaquant_core.experiments.systems.gradients import Reduced
from dynaquant_core.experiments.systems.pruning import Masked, Shrunk
from dynaquant_core.experiments.trainer import Trainer

__all__ = ["make_system"]


def make_system(experiment: Experiment, trainer: Trainer) -> System:
    """The system of a run, around its training.

    Args:
        experiment: one run of kind ``system``.
        trainer: its own, before the first step.

    Raises:
        ExperimentError: it has no system.
        ConfigError: the system's settings do not fit the model.
    """
    section = experiment.system
    if isinstance(section, SmaqSystem):
        return Coded(trainer, section)
    if isinstance(section, SamoSystem):
        return Shrunk(trainer, section)
    if isinstance(section, PrunedSystem):
        return Masked(trainer, section)
    if isinstance(section, TwoBitSystem):
        return Reduced(trainer, section, experiment)
    raise ExperimentError(f"{experiment.name}: the run has no section system.")
