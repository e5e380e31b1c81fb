"""Saves of two processes that fail: parts of `apart`."""

import os

from dynaquant_core.errors import DynaQuantError
from tests.integrations.accelerate.kit import EPOCH, build, train
from tests.plugins.kit import unwell

__all__ = ["leave", "refuse"]


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


def refuse(folder, rank):
    """What lies in the way cannot be removed (a link), then a hook of process 1 cannot write.

    Returns:
        What this one heard each time, and of a save after them.
    """
    heard, elsewhere = [], folder / "elsewhere"
    bench = build(folder, options={"evaluate": None})
    way = folder / "checkpoints" / "checkpoint_0"
    if rank == 0:
        way.parent.mkdir()
        elsewhere.mkdir()
        way.symlink_to(elsewhere)
    heard.append(_told(bench))
    bench.accelerator.wait_for_everyone()
    if rank == 0:
        way.unlink()

    def writes(_models, _weights, _folder):
        if rank == 1:
            raise OSError("no room for mine")

    hook = bench.accelerator.register_save_state_pre_hook(writes)
    heard.append(_told(bench))
    hook.remove()
    train(bench, bench.done + 1)  # they are still together
    heard.append(_told(bench))
    return heard


def _told(bench):
    try:
        bench.accelerator.save_state()
    except DynaQuantError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
