"""Protected weights: bfloat16 patterns, stored as they are or as steps from what the base held there (ours).

A protected code always stores its new value (paper sec. 6).  Late in training that value is a few steps of
bfloat16 away from the one before, and the steps cost a fraction of the patterns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.coding import encode_smallest
from dynaquant_core.coding.counts import is_symbols
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.dynaquant.held import Coded
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.quantize.codebook import table
from dynaquant_core.quantize.cut import PROTECTED

__all__ = ["base_patterns", "read_protected", "write_protected"]

Patterns = NDArray[np.uint16]


def base_patterns(base: Coded, positions: NDArray[np.int64]) -> Patterns:
    """What the base holds at some positions, as bfloat16 patterns.

    Args:
        base: codes of the base.
        positions: int64[m], ascending.

    Returns:
        uint16[m].
    """
    levels = (
        torch.from_numpy(table(base.centres)).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    )
    codes = base.codes[positions]
    patterns: Patterns = levels[codes]
    kept = codes == PROTECTED
    patterns[kept] = base.protected[np.searchsorted(np.flatnonzero(base.codes == PROTECTED), positions[kept])]
    return patterns


def steps(patterns: Patterns, before: Patterns) -> Patterns:
    """Signed distance between patterns, folded so that small ones of either sign are small numbers.

    Example:
        >>> steps(np.array([5, 4, 6], np.uint16), np.array([5, 5, 5], np.uint16)).tolist()
        [0, 1, 2]
    """
    distance = (patterns - before).view(np.int16)
    return ((distance << 1) ^ (distance >> 15)).view(np.uint16)


def undo_steps(folded: Patterns, before: Patterns) -> Patterns:
    """The inverse of `steps`."""
    distance = (folded >> np.uint16(1)) ^ (np.uint16(0) - (folded & np.uint16(1)))
    return (before + distance).astype(np.uint16)


def write_protected(name: str, patterns: Patterns, before: Patterns | None) -> Stream:
    """The smaller of the two streams: "protected" (patterns) or "steps" (from the base's)."""
    whole = Stream(name, "protected", *encode_smallest(patterns, None, ("raw", "planes")))
    if before is None:
        return whole
    moves = steps(patterns, before)
    candidates = ("constant", "rans", "raw") if is_symbols(moves) else ("constant", "planes", "raw")
    stepped = Stream(name, "steps", *encode_smallest(moves, None, candidates))
    return min(whole, stepped, key=lambda stream: len(stream.payload))


def read_protected(source: StreamSource, name: str, codes: NDArray[np.uint8], base: Coded | None) -> Patterns:
    """The protected patterns of a tensor whose codes are known.

    Raises:
        CorruptFileError: the stream is missing, or is not one that `write_protected` writes.
    """
    positions = np.flatnonzero(codes == PROTECTED)
    patterns: NDArray[Any] = np.empty(positions.size, dtype=np.uint16)
    if not positions.size:
        return patterns
    relative = base is not None and source.has(name, "steps")
    decode_stream(source, name, "steps" if relative else "protected", patterns)
    return undo_steps(patterns, base_patterns(base, positions)) if relative and base is not None else patterns
