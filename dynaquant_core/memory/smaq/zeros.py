"""Exact zeros, kept apart from the codes (ours).

Half of what a rectifier gives is zero, and its backward pass asks which half: a zero that came back as a
little more would let a gradient through.  No level of the published scheme is zero.  So, where it pays or
matters, one bit a value says which are zero, and only the others are coded; that is also smaller.  It matters
where zeros lie side by side, however few: a token of padding whose zeros came back as a little more is scaled
up a thousandfold by the next norm, and weights got gradients of tens of times their size.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dynaquant_core import device_jit
from dynaquant_core.memory.smaq.packed_words import pack_bits, unpack_bits
from dynaquant_core.memory.smaq.statistics import Ends
from dynaquant_core.memory.smaq.torch_path import pieces

__all__ = ["are_kept", "join", "split"]

#: One zero in so many makes the mask worth it; of tensors without negative values any zero does.
RARE = 64

#: So many side by side are no chance, as zeros of half precision may be.
RUN = 8


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
    if not are_kept(flat, flat.numel() - int(there.sum()), ends):
        return flat, None
    if flat.device.type == "cpu":
        return flat[there], torch.from_numpy(np.packbits(there.numpy(), bitorder="little"))
    return split_by_torch(flat, there)


def are_kept(flat: Tensor, zeros: int, ends: Ends) -> bool:
    """Whether so many zeros of a flat tensor of such ends get a mask.

    Example:
        >>> rare = torch.linspace(-1, 1, 4096)
        >>> rare[::1000] = 0
        >>> row = rare.index_fill(0, torch.arange(16, 32), 0)
        >>> [are_kept(one, int((one == 0).sum()), Ends(-1.0, 1.0)) for one in (rare, row)]
        [False, True]
    """
    if zeros * RARE >= flat.numel() or not ends.low < 0 < ends.high:
        return zeros > 0
    return zeros >= RUN and _has_run(flat)


def _has_run(flat: Tensor) -> bool:
    """Whether one of the groups of `RUN` neighbours is of zeros, as it is of a row of twice as many."""
    there = flat[: flat.numel() // RUN * RUN] != 0
    return bool(there.view(torch.int64).eq(0).any())


def join(values: Tensor, mask: Tensor | None, size: int) -> Tensor:
    """Puts the zeros back: [size] of the dtype of ``values``."""
    if mask is None:
        return values
    if device_jit.compiles(mask.device):
        from dynaquant_core.memory.smaq.device import zeros as on_device

        return on_device.join(values, mask, size)
    if mask.device.type != "cpu":
        return join_by_torch(values, mask, size)
    there = torch.from_numpy(np.unpackbits(mask.numpy(), count=size, bitorder="little").view(np.bool_))
    out = torch.zeros(size, dtype=values.dtype, device="cpu")
    out[there] = values
    return out


# -- the same with torch operations, for any device ----------------------------------------------


def split_by_torch(flat: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """(values that are there, their mask), in pieces: torch makes a 64-bit place of each that is chosen."""
    parts = [part for _, part in pieces(flat.numel())]
    kept = torch.cat([flat[part][there[part]] for part in parts])
    return kept, torch.cat([pack_bits(there[part]) for part in parts])


def join_by_torch(values: Tensor, mask: Tensor, size: int) -> Tensor:
    """Undoes `split_by_torch`; how many values come before a piece stays on the device, so nothing waits."""
    out = torch.zeros(size, dtype=values.dtype, device=values.device)
    if not values.numel():
        return out
    before = torch.zeros((), dtype=torch.int64, device=values.device)
    for _, part in pieces(size):
        there = unpack_bits(mask[part.start // 8 : -(-part.stop // 8)], part.stop - part.start)
        places = there.cumsum(0) + (before - 1)
        before = places[-1] + 1
        out[part] = torch.where(there, values.index_select(0, places.clamp_(min=0)), 0)
    return out
