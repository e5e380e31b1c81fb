"""Which tensors have a widest step: those that noise would slow for the rest of a run (ours).

A step of s spreads adds s^2 / 12 of a tensor's own energy, which a restore leaves there.  Behind a
normalisation only the direction of weights counts, so that larger ones turn less at each step of the
optimizer; convolutions mostly stand there.  Without second moments (SGD) the gradient shrinks too as the
weights behind a normalisation grow.  Matrices of transformers under Adam ended no worse however large they
grew (docs/restoring.md), so matrices are free wherever an optimizer keeps second moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from torch import Tensor

from dynaquant_core.methods.base import Hints
from dynaquant_core.quantize.layers import layer_type

__all__ = ["Bound"]


@dataclass(frozen=True, slots=True)
class Bound:
    """How wide steps may be.

    Args:
        widest: step of a bounded tensor in its own spreads.
        everywhere: no tensor is free.

    Example:
        >>> import torch
        >>> known = Hints(fisher={"fc": 1e-6, "conv": 1e-6})
        >>> bound, matrix, kernel = Bound(1.0), torch.zeros(10, 10), torch.zeros(8, 3, 3, 3)
        >>> bound.frees("fc", matrix, known), bound.frees("conv", kernel, known)
        (True, False)
        >>> bound.frees("fc", matrix, Hints())  # an optimizer without second moments, or none
        False
    """

    widest: float = inf
    everywhere: bool = False

    def frees(self, name: str, tensor: Tensor, hints: Hints) -> bool:
        """Whether a tensor's steps know no bound: a matrix whose optimizer keeps second moments."""
        if self.everywhere or tensor.dim() < 2 or name not in hints.fisher:
            return False
        kind = hints.layer_types.get(name) or layer_type(name, tuple(tensor.shape))
        return kind != "convolution"

    def free_share(self, state: Mapping[str, Tensor], hints: Hints) -> float:
        """Share of all weights that are free; 0 where there are none."""
        free = sum(tensor.numel() for name, tensor in state.items() if self.frees(name, tensor, hints))
        return free / max(sum(tensor.numel() for tensor in state.values()), 1)
