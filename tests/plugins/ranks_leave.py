"""How ranks that train together leave, at the end of `ranks_life`."""

import torch

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins import PluginOptions, PluginRun, is_checkpoint, read_tree
from tests.plugins.kit import slow_disk
from tests.training.models import evaluate_net

__all__ = ["leave"]


def leave(folder, rank, model):
    """Rank 1 cannot measure, and the writer's disk is slow; then the writer cannot write.

    Returns:
        What this rank heard, and whether an exact checkpoint was there by then.
    """

    def evaluate(model):
        if rank == 1:
            raise ValueError("rank one cannot")
        return evaluate_net(model)

    slow_disk(0.7)
    said = {}
    run = PluginRun(PluginOptions(), framework="none")
    run.watch(model, [], evaluate=evaluate)
    tree = {"model": model.state_dict()}
    try:
        run.choose(1, tree)
        if rank == 0:
            run.save(folder / "left", 1, tree)
    except DynaQuantError as error:
        said["search"] = [str(error), type(error).__name__, _is_exact(folder / "left", tree["model"])]
    run = PluginRun(PluginOptions(), framework="none")
    if rank == 0:
        run.save(folder / "store" / "2", 2, tree)  # that is a file
    try:
        run.meet(2)
    except DynaQuantError as error:
        said["meeting"] = [str(error), type(error).__name__]
    return said


def _is_exact(folder, state):
    if not is_checkpoint(folder):
        return False
    stored = read_tree(folder)["model"]
    return all(torch.equal(stored[name], tensor) for name, tensor in state.items())
