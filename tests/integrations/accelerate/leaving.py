"""Saves of two processes that fail: part of `apart`."""

import os

from dynaquant_core.errors import DynaQuantError
from tests.integrations.accelerate.kit import EPOCH, build, train
from tests.plugins.kit import unwell

__all__ = ["leave"]


def leave(folder, rank):
    """Process 1 cannot measure, then it does not answer.

    Returns:
        What this one heard each time, and whether the other had left by then.
    """
    left, heard = folder / "left", []
    os.environ["DYNAQUANT_DEADLINE"] = "4"
    for evaluate in unwell(rank, left):
        bench = build(folder / evaluate.__name__, options={"evaluate": evaluate})
        try:
            train(bench, EPOCH, save_every=EPOCH)
        except DynaQuantError as error:
            heard.append(f"{type(error).__name__}: {error}")
    late = left.exists()
    left.touch()
    return [*heard, late]
