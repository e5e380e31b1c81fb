"""Which tensors keep their norm, and how: what noise adds to it, a factor takes back (ours).

A convolution before a batch norm counts by its direction alone, and the longer it is, the less an optimizer
turns it.  Noise of a lattice adds step^2 / 12 to the mean square of its weights, on average exactly; unlike
noise of a direction, which training takes out again, length stays, and every restore adds to it.  Multiplied
by ``sqrt(q / (q + step^2 / 12))``, q their mean square, the tensor is as long as it was.

Elsewhere length has a meaning, and weights drawn towards zero would be progress that is lost: there nothing
is shortened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice.bound import batch_normed, owner
from dynaquant_core.methods.lattice.layout import FACTORS
from dynaquant_core.methods.lattice.zeros import zero_share
from dynaquant_core.quantize.lattice import is_unit, mean_square
from dynaquant_core.quantize.layers import layer_type
from dynaquant_core.threads import map_threads

__all__ = ["keeps_norm", "shortening", "squares"]


def keeps_norm(name: str, tensor: Tensor, hints: Hints) -> bool:
    """Whether a tensor is a convolution with a batch norm beside it, as far as names tell.

    Example:
        >>> import torch
        >>> hints = Hints(roles={"block.bn.running_var": "exact"})
        >>> keeps_norm("block.conv.weight", torch.zeros(8, 3, 3, 3), hints)
        True
        >>> keeps_norm("head.weight", torch.zeros(8, 8), hints)
        False
    """
    kind = hints.layer_types.get(name) or layer_type(name, tuple(tensor.shape))
    return kind == "convolution" and owner(owner(name)) in batch_normed(hints)


def squares(state: Mapping[str, Tensor], hints: Hints) -> Mapping[str, float]:
    """Mean square of the weights of every tensor that keeps its norm; measured once a save.

    Of what is not zero in a pruned one: no noise is added to zeros.
    """
    key = ("lattice", "squares")
    if key not in hints.scratch:
        names = [name for name, tensor in state.items() if keeps_norm(name, tensor, hints)]
        found = map_threads(lambda name: _square(state[name]), names)
        hints.scratch[key] = dict(zip(names, found, strict=True))
    known: dict[str, float] = hints.scratch[key]
    return known


def _square(tensor: Tensor) -> float:
    return mean_square(tensor) / (1.0 - zero_share(tensor))


def shortening(step: float, square: float) -> float:
    """What weights of such a mean square are multiplied by beside their lattice's step.

    A whole number of 2^-16, so that its product with a step is exact in float32.

    Args:
        step: of their lattice.
        square: their mean square; 0 or not finite: nothing is known.

    Returns:
        Above 0, at most 1.

    Example:
        >>> shortening(2.0, 1.0), shortening(2.0, 0.0)
        (0.86602783203125, 1.0)
    """
    if not (math.isfinite(square) and square > 0):
        return 1.0
    share = square / (square + step * step / 12)
    factor = max(round(math.sqrt(share) * FACTORS), 1) / FACTORS
    return factor if is_unit(step * factor) else 1.0
