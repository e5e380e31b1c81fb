"""Trainings on two ranks that end, well or not: part of `ranks`."""

import os

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins import is_checkpoint
from dynaquant_transformers import DynaQuantCallback
from tests.integrations.transformers.kit import EXACT, names, trainer
from tests.plugins.kit import slow_disk, unwell

__all__ = ["leave"]

GIVEN = {"ddp_backend": "gloo", "max_steps": 2, "save_steps": 2}


def leave(folder, rank):
    """Rank 1 cannot measure, then it does not answer, then training ends well on a slow disk.

    Returns:
        The error that this rank heard each time, and what it found in the end.
    """
    left = folder / "left"
    fails, stays_away = unwell(rank, left)
    said = {"fails": _heard(trainer(folder / "fails", DynaQuantCallback(evaluate=fails), **GIVEN))}
    os.environ["DYNAQUANT_DEADLINE"] = "4"
    said["away"] = _heard(trainer(folder / "away", DynaQuantCallback(evaluate=stays_away), **GIVEN))
    said["late"] = left.exists()
    left.touch()
    slow_disk(0.7)
    trainer(folder / "ends", DynaQuantCallback(**EXACT), **GIVEN).train()
    said["found"] = [sorted(names(folder / "ends")), is_checkpoint(folder / "ends" / "checkpoint-2")]
    return said


def _heard(one):
    try:
        one.train()
    except DynaQuantError as error:
        return f"{type(error).__name__}: {error}"
    return None
