"""Casts of parameters, which autocast makes and autograd saves: made again for the backward pass, not packed.

They are exact that way and cost no memory: the parameter lives anyway.  The graph says what a saved tensor
was cast from; what is seen in another way than as it was cast, or transposed, is packed as any other, and so
is what was written to since.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from dynaquant_core.memory.smaq.held import Kept
from dynaquant_core.memory.smaq.memory_layout import View, flat_run

__all__ = ["Recast", "recast_of"]

#: What autograd calls a cast, and a transposed matrix.
CAST: Final = "ToCopyBackward0"
TRANSPOSED: Final = "TBackward0"


@dataclass(frozen=True, slots=True)
class Recast:
    """A parameter in another dtype, flat in the order of its memory.

    Args:
        source: the parameter, as it was when the cast was saved.
        dtype: of the cast.
    """

    source: Kept
    dtype: torch.dtype

    def values(self) -> Tensor:
        """The cast.

        Raises:
            GradientError: the parameter was written to since; what is written through ``.data`` is not seen,
                as torch does not see it where weights are saved as they are.
        """
        return flat_run(self.source.read())[0].to(self.dtype)


def recast_of(tensor: Tensor, parameters: Container[nn.Parameter]) -> tuple[Recast, View] | None:
    """The cast that a saved tensor is, and how it looks at it; None: it is none of a parameter's.

    Example:
        >>> weight = nn.Parameter(torch.randn(3, 2))
        >>> cast, view = recast_of(weight.bfloat16().t(), {weight})
        >>> view.of(cast.values()).shape, recast_of(torch.zeros(3, 2), {weight})
        (torch.Size([2, 3]), None)
    """
    if tensor._version:  # written to without the graph's knowing, as by a straight-through estimator
        return None
    made: Any = tensor.grad_fn
    if made is not None and made.name() == TRANSPOSED and tensor.dim() == 2:
        made, seen = made.next_functions[0][0], tensor.detach().t()
    else:
        seen = tensor
    if made is None or made.name() != CAST:
        return None
    source = getattr(made.next_functions[0][0], "variable", None)  # of a leaf
    if source is None or source not in parameters or source.dtype == tensor.dtype:
        return None
    alike = (seen.shape, seen.stride(), seen.device) == (source.shape, source.stride(), source.device)
    run = flat_run(source)[0]
    if not alike or tensor.storage_offset() or run.numel() != source.numel():
        return None
    return Recast(Kept.of(source), tensor.dtype), View(tuple(tensor.shape), tuple(tensor.stride()), 0)
