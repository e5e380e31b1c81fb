"""Trainings on two ranks that end, well or not: part of `ranks`."""

import errno
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

    Then it cannot read what the other can.

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
    said["differs"] = differs(folder / "differs", rank)
    return said


def differs(folder, rank):
    """What each rank hears where rank 1 cannot read the newest checkpoint; then where it can again."""
    del os.environ["DYNAQUANT_DEADLINE"]
    given = GIVEN | {"save_steps": 1}
    trainer(folder, DynaQuantCallback(**EXACT), **given).train()
    real = os.open

    def refused(path, *rest, **more):
        if rank == 1 and "checkpoint-2/step" in str(path):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *rest, **more)

    os.open = refused
    heard = _heard(trainer(folder, DynaQuantCallback(**EXACT), **given), resume_from_checkpoint=True)
    os.open = real
    again = trainer(folder, DynaQuantCallback(**EXACT), **given | {"max_steps": 3})
    again.train(resume_from_checkpoint=True)
    return [heard, again.state.global_step]


def _heard(one, **given):
    try:
        one.train(**given)
    except DynaQuantError as error:
        return f"{type(error).__name__}: {error}"
    return None
