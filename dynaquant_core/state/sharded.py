"""Optimizers of which each rank holds a share."""

from __future__ import annotations

from torch.optim import Optimizer

__all__ = ["is_sharded"]


def is_sharded(optimizer: Optimizer) -> bool:
    """Whether each rank keeps the state of some parameters only: `ZeroRedundancyOptimizer`, fairscale's OSS.

    Both gather it by the same method, by which Lightning knows them too.

    Example:
        >>> import torch
        >>> is_sharded(torch.optim.SGD([torch.zeros(1)]))
        False
    """
    return hasattr(optimizer, "consolidate_state_dict")
