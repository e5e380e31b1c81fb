"""Whether the ranks of a data-parallel training round alike: asked at first, and after a load or reseed.

Gradients, weights and state are the same on every rank, and stay so only where they are rounded by the same
draws.  A handle that one rank alone has restored or reseeded draws others.
"""

from __future__ import annotations

from typing import Any, final
from weakref import ref

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
    """Compares over DDP's ranks what steps are rounded with, once and after a load or a reseed.

    Else the ranks only tell each other, in one number a step, whether one of them has loaded: who has would
    compare alone, against gradients of the others.

    From its first `join()` on nobody compares: a rank that has run out of data takes no steps, so the others
    would wait for it here.

    Args:
        model: what is coded; where it is not wrapped in DDP, nobody is asked.
        coder: its coder.
    """

    def __init__(self, model: nn.Module, coder: Coder) -> None:
        inner: Any = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
        several = isinstance(inner, DistributedDataParallel) and inner.process_group.size() > 1
        # An optimizer's hooks hold this, and shall not keep the model alive.
        self._parallel: ref[Any] | None = ref(inner) if several else None
        self._device = next(model.parameters()).device if several else torch.device("cpu")
        self._coder = coder

    def require(self) -> None:
        """Before a step is coded; collective.

        Raises:
            StateMismatchError: on every rank, where they would round in other ways.
        """
        parallel = None if self._parallel is None else self._parallel()
        if parallel is None or parallel._join_config.enable:
            return
        group = parallel.process_group
        (doubted,) = self._most([int(self._coder.doubted)], group)
        if not doubted:
            return
        digest = xxhash.xxh3_64_intdigest(self._coder.shared()) >> 1
        most, least = self._most([digest, -digest], group)
        if most != -least:
            raise StateMismatchError(
                "SmaQ: the ranks draw from different random streams, or with different statistics, so their "
                "weights would be rounded apart; give every rank the same seed, and restore the handle (or "
                "reseed it) on all of them from checkpoints of one step, or on none; nothing was coded."
            )
        self._coder.doubted = False

    def _most(self, numbers: list[int], group: dist.ProcessGroup) -> list[int]:
        """The greatest of each number over the ranks."""
        found = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group)
        return [int(one) for one in found.tolist()]
