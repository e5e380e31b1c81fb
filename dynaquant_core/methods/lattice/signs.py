"""Tensors all of whose values have one sign keep it (ours).

Factors of a factorisation, rates, variances, transition matrices: a run holds them above zero, takes their
logarithm or their root, and never looks whether they are.  A cell that reaches beyond zero would give it a
negative value.  So of such a tensor its value nearest to zero is said, its *edge*, and what is decoded does
not pass it.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from dynaquant_core.methods.lattice.rows import MOVING, PRUNED, StillRows
from dynaquant_core.quantize.flat import flatten

__all__ = ["edge_of", "ends_of", "nearest_zero"]

#: Values of a tensor that are looked at before all of them: of most tensors they have both signs.
LOOK = 1 << 8
#: Nothing but zero is nearer to zero: smaller numbers a processor may take for zero.
NEAREST = 2.0**-126


def nearest_zero(tensor: Tensor, rows: StillRows | None) -> float | None:
    """The value nearest to zero where no two have different signs; else None.

    Args:
        tensor: floating, of any device.
        rows: of it that stay: zeros that they say are not looked at, nor anything else that they say.

    Returns:
        Its sign, of a zero too, is the tensor's.

    Example:
        >>> import torch
        >>> pairs = torch.tensor([[2, 0.5], [-2, -0.5], [-2, 0], [-2, 1]])
        >>> [nearest_zero(pair, None) for pair in pairs]
        [0.5, -0.5, -0.0, None]
    """
    flat = flatten(tensor)
    if _one_side(flat[:LOOK]) is None:
        return None
    if rows is not None:
        moving = np.flatnonzero((rows.marks == MOVING) | (rows.marks == PRUNED))
        flat = flat.view(rows.marks.size, -1)[moving.tolist()].reshape(-1)
        flat = flat if rows.zeros is None else flat[flat != 0]
    return _one_side(flat)


def edge_of(nearest: float | None, step: float, factor: float) -> float | None:
    """What is decoded of a tensor goes no nearer to zero than this, nor beyond; None: wherever it likes.

    Its first bits, towards zero.  Where no cell reaches zero no sign is lost, and what is decoded is left as
    it is: right on average.

    Args:
        nearest: of `nearest_zero`.
        step: of the lattice.
        factor: that values are multiplied by beside the step.

    Example:
        >>> edge_of(0.25, 1.0, 1.0), edge_of(-0.0, 1.0, 1.0), edge_of(0.5, 1.0, 1.0), edge_of(None, 1.0, 1.0)
        (0.25, -0.0, None, None)
    """
    if nearest is None or 2 * abs(nearest) >= step:
        return None
    if nearest == 0:
        return nearest
    bits = np.float32(abs(nearest) * factor).view(np.uint32) & np.uint32(0xFFFF0000)
    return math.copysign(max(float(bits.view(np.float32)), NEAREST), nearest)


def ends_of(edge: float | None) -> tuple[float, float]:
    """The smallest and the largest value that may be decoded.

    Example:
        >>> ends_of(0.5), ends_of(-0.0), ends_of(None)
        ((0.5, inf), (-inf, 0.0), (-inf, inf))
    """
    if edge is None:
        return -math.inf, math.inf
    return (edge, math.inf) if math.copysign(1.0, edge) > 0 else (-math.inf, edge + 0.0)


def _one_side(flat: Tensor) -> float | None:
    """As `nearest_zero`, of a flat tensor."""
    if not flat.numel():
        return None
    low, high = (float(end) for end in flat.aminmax())
    if low >= 0:
        return abs(low)
    return -abs(high) if high <= 0 else None
