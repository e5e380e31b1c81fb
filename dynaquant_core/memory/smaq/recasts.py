"""Casts of parameters and of the batch, which autocast makes and autograd saves: made again, not packed.

They are exact that way and cost no memory: what was cast lives anyway.  What that was is not written in a
saved tensor, so it is compared with those of its shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynaquant_core.memory.smaq.held import Kept
from dynaquant_core.memory.smaq.memory_layout import View, flat_run

__all__ = ["Recast", "Recasts"]


@dataclass(frozen=True, slots=True)
class Recast:
    """A tensor in another dtype, flat in the order of its memory.

    Args:
        source: the tensor, as it was when the cast was saved.
        dtype: of the cast.
    """

    source: Kept
    dtype: torch.dtype

    def values(self) -> Tensor:
        """The cast.

        Raises:
            GradientError: the tensor was written to since.
        """
        return flat_run(self.source.read())[0].to(self.dtype)


class Recasts:
    """Knows what may be cast by its size.

    Args:
        sources: dense tensors; others are passed over.

    Example:
        >>> weight = nn.Parameter(torch.randn(3, 2))
        >>> known = Recasts([weight])
        >>> found = known.of(weight.detach().to(torch.bfloat16).t())
        >>> found[1].of(found[0].values()).shape, known.of(torch.zeros(3, 2, dtype=torch.bfloat16))
        (torch.Size([2, 3]), None)
    """

    def __init__(self, sources: Iterable[Tensor]) -> None:
        self._by_size: dict[int, list[Tensor]] = defaultdict(list)
        for source in sources:
            plain = type(source) in (Tensor, nn.Parameter) and source.layout == torch.strided
            if plain and not source.is_nested and source.is_floating_point():
                self._by_size[source.numel()].append(source)

    @torch.no_grad()
    def of(self, tensor: Tensor) -> tuple[Recast, View] | None:
        """The cast that a tensor is, and how it looks at it; None: it is none."""
        shape = sorted(tensor.shape)
        for source in self._by_size.get(tensor.numel(), ()):
            if source.dtype == tensor.dtype or source.device != tensor.device:
                continue
            if sorted(source.shape) != shape:
                continue
            (run, view), whole = flat_run(tensor), flat_run(source)[0]
            if run.numel() == whole.numel() and torch.equal(run, whole.to(tensor.dtype)):
                return Recast(Kept.of(source), tensor.dtype), view
        return None
