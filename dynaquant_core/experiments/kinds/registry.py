"""The table of kinds by their name in the YAML file."""

from __future__ import annotations

from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.kinds.ablate import Ablate
from dynaquant_core.experiments.kinds.base import Kind
from dynaquant_core.experiments.kinds.replay import Replayed
from dynaquant_core.experiments.kinds.rework import Reworked
from dynaquant_core.experiments.kinds.system import Shrinking
from dynaquant_core.experiments.kinds.train import Train
from dynaquant_core.experiments.kinds.transfer import Transferred

__all__ = ["KINDS", "kind_of"]

KINDS: dict[str, Kind] = {
    "train": Train(),
    "replay": Replayed(),
    "transfer": Transferred(),
    "ablate": Ablate(),
    "rework": Reworked(),
    "system": Shrinking(),
}


def kind_of(run: Experiment) -> Kind:
    """What a run's ``kind`` stands for."""
    return KINDS[run.kind]
