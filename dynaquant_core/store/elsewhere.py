"""Tensors of a framework's state that lie elsewhere than its model and its optimizers.

A callback's queue, a prior among the hyperparameters, a loader's table: they look like weights, nobody trains
them, and no measure of the model sees what is lost of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynaquant_core.state import Tree
from dynaquant_core.store.models import match_names

__all__ = ["names_elsewhere"]


def names_elsewhere(tree: Tree, homes: Sequence[str]) -> frozenset[str]:
    """Names of the tensors that lie in no home and are no copy of a weight that lies in one.

    A copy (an average) has its name, or one that ends with it, and its shape.

    Args:
        tree: a whole state.
        homes: dotted names of the parts that hold the model and its optimizers; none: nothing is elsewhere.

    Example:
        >>> import torch
        >>> from dynaquant_core.state import flatten
        >>> state = {"model": {"fc.weight": torch.ones(2, 2)}, "ema": {"fc.weight": torch.zeros(2, 2)}}
        >>> state["callbacks"] = {"queue": torch.rand(2, 2)}
        >>> names_elsewhere(flatten(state), ["model"])
        frozenset({'callbacks.queue'})
    """
    if not homes:
        return frozenset()
    shapes: dict[str, tuple[int, ...]] = {}
    outside = {}
    for leaf in tree.leaves:
        own = [
            path.removeprefix(f"{home}.")
            for path in tree.paths(leaf)
            for home in homes
            if path.startswith(f"{home}.")
        ]
        if not own:
            outside[leaf.name] = leaf.tensor
        elif not leaf.in_optimizer:
            shapes |= dict.fromkeys(own, tuple(leaf.tensor.shape))
    return frozenset(outside) - frozenset(match_names(outside, shapes))
