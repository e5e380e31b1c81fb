"""Whether the ranks of a data-parallel training round alike: asked at the first step, and after a load.

Gradients, weights and state are the same on every rank, and stay so only where they are rounded by the same
draws.  A handle that one rank alone has restored draws others.
"""

from __future__ import annotations

from typing import Any, final

import torch
import torch.distributed as dist
import xxhash
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.memory.smaq.coder import Coder

__all__ = ["Alike"]


@final
class Alike:
    """Compares over DDP's ranks what steps are rounded with, once; then costs nothing.

    Args:
        model: what is coded; where it is not wrapped in DDP, nobody is asked.
        coder: its coder.
    """

    def __init__(self, model: nn.Module, coder: Coder) -> None:
        inner: Any = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
        parallel = isinstance(inner, DistributedDataParallel)
        group = inner.process_group if parallel else None
        self._group = group if group is not None and group.size() > 1 else None
        self._device = next(model.parameters()).device if parallel else torch.device("cpu")
        self._coder = coder

    def require(self) -> None:
        """Before a step is coded; collective where it compares.

        Raises:
            StateMismatchError: on every rank, where they would round in other ways.
        """
        if self._group is None or not self._coder.doubted:
            return
        digest = xxhash.xxh3_64_intdigest(self._coder.shared()) >> 1
        extremes = torch.tensor([digest, -digest], device=self._device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX, self._group)
        most, least = extremes.tolist()
        if most != -least:
            raise StateMismatchError(
                "SmaQ: the ranks draw from different random streams, or with different statistics, so their "
                "weights would be rounded apart; give every rank the same seed, and restore the handle (or "
                "reseed it) on all of them from checkpoints of one step, or on none; nothing was coded."
            )
        self._coder.doubted = False
