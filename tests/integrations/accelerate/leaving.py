"""Saves of two processes that fail: part of `apart`."""

import os
import time

from dynaquant_core.errors import DynaQuantError
from tests.integrations.accelerate.kit import EPOCH, build, train

__all__ = ["leave"]


def leave(folder, rank):
    """Process 1 cannot measure, then it does not answer.

    Returns:
        What this one heard each time, and whether the other had left by then.
    """
    left, heard = folder / "left", []

    def fails(_):
        if rank == 1:
            raise ValueError("process one cannot")
        return 1.0

    def stays_away(_):
        last = time.monotonic() + 60
        while rank == 1 and not left.exists() and time.monotonic() < last:
            time.sleep(0.05)
        return 1.0

    os.environ["DYNAQUANT_DEADLINE"] = "4"
    for evaluate in (fails, stays_away):
        bench = build(folder / evaluate.__name__, options={"evaluate": evaluate})
        try:
            train(bench, EPOCH, save_every=EPOCH)
        except DynaQuantError as error:
            heard.append(f"{type(error).__name__}: {error}")
    late = left.exists()
    left.touch()
    return [*heard, late]
