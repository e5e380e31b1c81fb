"""Codes drawn between the two nearest levels, so that what is decoded is right on average (ours).

A weight between two levels gets the upper one with a probability equal to the share of the gap that it has
gone.  The draws are the lattice's offsets (`lattice.offsets`): they follow from a key and a weight's index,
so a weight that did not move keeps its code, and one that lies on a level stays there.  Nearest codes would
lose every movement that does not reach the middle of a gap; these lose none, at twice the squared error.

A reader does not need the draws, but knowing them tells it which weights are likely to have changed their
code: those whose draw is near an end.  `contexts` says it to a coder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.lazy import lazy
from dynaquant_core.quantize import cpu_path, dither_torch, seam, torch_path
from dynaquant_core.quantize.buckets import Buckets
from dynaquant_core.quantize.codebook import FIRST_CENTRE, checked
from dynaquant_core.quantize.cut import PRUNED, Cut
from dynaquant_core.quantize.dither_kernels import add_places, settle
from dynaquant_core.quantize.flat import as_float32, flatten, host_view
from dynaquant_core.quantize.lattice import offset_kernels
from dynaquant_core.quantize.lattice.offsets import as_key, scratch
from dynaquant_core.threads import map_threads

__all__ = ["Levels", "assign_dithered", "contexts"]

Floats = NDArray[np.float32]

#: Where the 16-bit number of a draw moves on to the next place; the ends tell most.
PLACE_ENDS = (2048, 8192, 16384, 49152, 57344, 63488)
PLACES = len(PLACE_ENDS) + 1
PLACE_OF = np.searchsorted(PLACE_ENDS, np.arange(1 << 16), side="right").astype(np.uint8)

#: The key of offsets, or the offsets themselves (of a sample).
Draws = int | Floats


@dataclass(frozen=True, eq=False)
class Levels:
    """What codes may mean, as a reader decodes them.

    Args:
        values: float32[l], ascending, l at least 2.
        codes: uint8[l], the code of each.
    """

    values: Floats
    codes: NDArray[np.uint8]

    @classmethod
    def of(cls, centres: Floats, dtype: torch.dtype, *, zero: bool) -> Levels:
        """The levels of a codebook.

        Args:
            centres: float32[k], ascending.
            dtype: of the tensor; a reader's values are rounded to it.
            zero: whether the code of pruned weights may be given too; where there is no centre, it may.

        Example:
            >>> levels = Levels.of(np.array([-1.0, 1.0], dtype=np.float32), torch.float32, zero=True)
            >>> levels.values.tolist(), levels.codes.tolist()
            ([-1.0, 0.0, 1.0], [2, 0, 3])
        """
        values = checked(centres).astype(np.float32)
        codes = np.arange(FIRST_CENTRE, FIRST_CENTRE + values.size, dtype=np.uint8)
        if not values.size or (zero and not (values == 0).any()):
            place = int(np.searchsorted(values, 0.0))
            values, codes = np.insert(values, place, 0.0), np.insert(codes, place, PRUNED)
        if values.size == 1:
            values, codes = np.repeat(values, 2), np.repeat(codes, 2)
        return cls(seam.as_dtype(values, dtype).to(torch.float32).numpy(), codes)

    @lazy
    def gaps(self) -> Floats:
        """float32[l - 1], from each level to the next."""
        return np.diff(self.values)

    def lookup(self, buckets: Buckets) -> NDArray[np.uint8]:
        """uint8[size]: 2 + the index of the last level at or below all of a bucket, from 0 to l - 2."""
        below = np.searchsorted(self.values, buckets.edges[:-1], side="right") - 1
        return (FIRST_CENTRE + below.clip(0, self.values.size - 2)).astype(np.uint8)


def assign_dithered(
    values: Tensor,
    gradient: Tensor | None,
    cut: Cut,
    levels: Levels,
    buckets: Buckets,
    draws: Draws,
    *,
    out: NDArray[np.uint8] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Codes a tensor: 1 protected, else one of the two levels around the weight, right on average.

    What lies outside all levels gets the outermost.  Nothing is pruned: the cut's rule on it is left out, and
    zero is a level like the others where `Levels` holds it.

    Args:
        values: the weights.
        gradient: EMA of their gradient; untouched, and may be None, unless a rule on sensitivity protects.
        cut: thresholds.
        levels: what codes mean.
        buckets: signed buckets.
        draws: key of the offsets (`lattice.offset_key`), or float32[n], the offsets.
        out: uint8[n], where the codes go; None: into memory of their own.

    Returns:
        (codes uint8[n], bfloat16 bit patterns uint16[m] of the protected weights in order), in host memory;
        the same bits on every device and for any number of threads.

    Raises:
        ConfigError, StateMismatchError: as `seam.assign`; or the offsets are not as many as the weights.

    Example:
        >>> from dynaquant_core.quantize.buckets import BitBuckets
        >>> from dynaquant_core.quantize.cut import NO_CUT
        >>> levels = Levels.of(np.array([-1.0, 1.0], dtype=np.float32), torch.float32, zero=False)
        >>> codes, _ = assign_dithered(torch.full((10_000,), 0.5), None, NO_CUT, levels, BitBuckets(6), 7)
        >>> round(float((codes == 3).mean()), 2)
        0.75
    """
    flat = flatten(values)
    if not isinstance(draws, int) and draws.shape != (flat.numel(),):
        raise StateMismatchError(
            f"quantize: {draws.size} offsets do not fit a tensor of {flat.numel()} elements."
        )
    unpruned = replace(cut, prune=-1.0)
    codes, protected = seam.assign(flat, gradient, unpruned, levels.lookup(buckets), buckets, out=out)
    side = seam.side(flat)
    if side is cpu_path:
        settle_on_cpu(flat, codes, levels, draws)
    else:
        tables = levels.values, levels.gaps, levels.codes
        (dither_torch if side is torch_path else side).settle(flat, codes, tables, draws)
    return codes, protected


def settle_on_cpu(flat: Tensor, codes: NDArray[np.uint8], levels: Levels, draws: Draws) -> None:
    """Draws codes in place, block by block: `dither_kernels.settle`."""
    array = host_view(flat)

    def work(part: slice) -> None:
        words, halves = scratch()
        room = np.empty(min(part.stop - part.start, cpu_path.BLOCK), dtype=np.float32)
        for block in cpu_path.blocks(part):
            if isinstance(draws, int):
                offsets = room[: block.stop - block.start]
                offset_kernels.fill_offsets(as_key(draws), np.uint64(block.start), words, halves, offsets)
            else:
                offsets = draws[block]
            settle(codes[block], as_float32(array[block]), offsets, levels.values, levels.gaps, levels.codes)

    map_threads(work, cpu_path.shares(array.size))


def contexts(codes: NDArray[np.uint8], key: int, start: int = 0) -> NDArray[np.uint16]:
    """What a coder of dithered codes knows of each weight: its code in the base and the place of its draw.

    Args:
        codes: uint8[n], of the base.
        key: of the offsets.
        start: index of the first weight in its tensor.

    Returns:
        uint16[n]: 7 times the code plus the place.

    Example:
        >>> contexts(np.array([2, 2, 2], dtype=np.uint8), key=7).tolist()
        [15, 17, 19]
    """
    number, found = as_key(key), np.empty(codes.size, dtype=np.uint16)

    def work(part: slice) -> None:
        words, halves = scratch()
        first = np.uint64(start + part.start)
        add_places(number, first, words, halves, codes[part], PLACE_OF, np.uint16(PLACES), found[part])

    map_threads(work, cpu_path.shares(codes.size))
    return found
