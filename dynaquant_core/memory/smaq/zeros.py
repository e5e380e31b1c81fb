"""Exact zeros, kept apart from the codes (ours).

Half of what a rectifier gives is zero, and its backward pass asks which half: a zero that came back as a
little more would let a gradient through.  No level of the published scheme is zero.  So, where it pays or
matters, one bit a value says which are zero, and only the others are coded; that is also smaller.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynaquant_core.memory.smaq.packed_words import pack_bits, unpack_bits
from dynaquant_core.memory.smaq.statistics import Ends
from dynaquant_core.memory.smaq.torch_path import pieces

__all__ = ["join", "split"]

#: One zero in so many makes the mask worth it; of tensors without negative values any zero does.
RARE = 64


def split(flat: Tensor, ends: Ends) -> tuple[Tensor, Tensor | None]:
    """(values to be coded, mask of those that are not zero): the tensor itself and None where none is kept.

    Returns:
        (floating[m], uint8[ceil(n / 8)] or None).

    Example:
        >>> values, mask = split(torch.tensor([0.0, 2.0, 0.0]), Ends(0.0, 2.0))
        >>> values.tolist(), mask.tolist(), join(values, mask, 3).tolist()
        ([2.0], [2], [0.0, 2.0, 0.0])
    """
    if ends.low > 0 or ends.high < 0:
        return flat, None
    there = flat != 0
    zeros = flat.numel() - int(there.sum())
    if zeros == 0 or (ends.low < 0 < ends.high and zeros * RARE < flat.numel()):
        return flat, None
    if flat.device.type == "cpu":
        return flat[there], torch.from_numpy(np.packbits(there.numpy(), bitorder="little"))
    # In pieces: torch makes a 64-bit place of every value that is chosen.
    kept = torch.cat([flat[part][there[part]] for _, part in pieces(flat.numel())])
    return kept, torch.cat([pack_bits(there[part]) for _, part in pieces(flat.numel())])


def join(values: Tensor, mask: Tensor | None, size: int) -> Tensor:
    """Puts the zeros back: [size] of the dtype of ``values``."""
    if mask is None:
        return values
    out = torch.zeros(size, dtype=values.dtype, device=values.device)
    if mask.device.type == "cpu":
        there = torch.from_numpy(np.unpackbits(mask.numpy(), count=size, bitorder="little").view(np.bool_))
        out[there] = values
    elif values.numel():
        before = torch.zeros((), dtype=torch.int64, device=values.device)  # a device's, so nothing waits
        for _, part in pieces(size):
            there = unpack_bits(mask[part.start // 8 : -(-part.stop // 8)], part.stop - part.start)
            places = there.cumsum(0) + (before - 1)
            before = places[-1] + 1
            torch.where(there, values.index_select(0, places.clamp_(min=0)), out[part], out=out[part])
    return out
