"""The lattice on tensors in host memory: kernels over slices of the data in a thread pool.

A slice is walked in blocks that stay in the cache; only blocks of a dtype other than float32 are converted,
one at a time.  Results do not depend on slices or threads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.borrowed import borrowed
from dynaquant_core.quantize.flat import host_view
from dynaquant_core.quantize.lattice import kernels
from dynaquant_core.quantize.lattice.offsets import scratch
from dynaquant_core.threads import map_threads, slices

__all__ = ["dequantise", "quantise"]

#: Elements that make a thread worth its hand-over.
SLICE = 1 << 16

#: Elements of one block: of float32, and of what torch converts (more it would do in threads of its own).
WIDE, BLOCK = 1 << 18, 1 << 15

Piece = tuple[slice, int]
Ends = tuple[np.float32, np.float32]


def blocks(part: slice, dtype: torch.dtype) -> Iterator[slice]:
    """Cuts a slice of a tensor into blocks."""
    size = WIDE if dtype == torch.float32 else BLOCK
    for start in range(part.start, part.stop, size):
        yield slice(start, min(start + size, part.stop))


def quantise(
    flat: Tensor, step: np.float32, key: np.uint64, symbols: NDArray[np.uint8]
) -> NDArray[np.int32] | None:
    """Writes the symbol of each value to ``symbols`` uint8[n]; returns the escapes in order.

    Args:
        flat: contiguous floating tensor [n].
        step: inside the limits of `steps.round_step`.
        key: of the offsets.
        symbols: uint8[n], written.

    Returns:
        int32[m], or None where one does not fit.
    """

    def work(part: slice) -> list[NDArray[np.int32]] | None:
        words, halves = scratch()
        pieces = [np.zeros(0, dtype=np.int32)]
        for block in blocks(part, flat.dtype):
            values, out, start = as_float32(flat[block]), symbols[block], np.uint64(block.start)
            escaped = kernels.quantise(key, start, words, halves, values, step, out)
            if escaped:
                pieces.append(np.empty(escaped, dtype=np.int32))
                if not kernels.find_escapes(key, start, values, step, zeros(out), pieces[-1]):
                    return None
        return pieces

    found: list[NDArray[np.int32]] = [np.zeros(0, dtype=np.int32)]
    for pieces in map_threads(work, slices(flat.numel(), SLICE)):
        if pieces is None:
            return None
        found += pieces
    return np.concatenate(found)


def dequantise(
    symbols: NDArray[np.uint8],
    escapes: NDArray[np.int32],
    step: np.float32,
    key: np.uint64,
    ends: Ends,
    out: Tensor,
    pieces: list[Piece],
) -> None:
    """Decodes into ``out``.

    Args:
        symbols: uint8[n].
        escapes: int32[m].
        step: inside the limits of `steps.round_step`.
        key: of the offsets.
        ends: smallest and largest value; finite in the dtype of ``out``.
        out: flat and contiguous, [n].
        pieces: consecutive parts of the symbols, each with the number of escapes before it.
    """
    target = host_view(out)
    direct = target if out.dtype == torch.float32 else None

    def work(piece: Piece) -> None:
        part, used = piece
        words, halves = scratch()
        for block in blocks(part, out.dtype):
            codes, start = symbols[block], np.uint64(block.start)
            decoded = np.empty(codes.size, dtype=np.float32) if direct is None else direct[block]
            kernels.place(key, start, words, halves, codes, step, *ends, decoded)
            if codes.min() == 0:
                where = zeros(codes)
                kept = escapes[used : used + where.size]
                kernels.place_escapes(key, start, where, kept, step, *ends, decoded)
                used += where.size
            if direct is None:
                target[block] = host_view(torch.from_numpy(decoded).to(out.dtype))

    map_threads(work, pieces)


def zeros(symbols: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Positions of the escapes among symbols."""
    return np.flatnonzero(symbols == 0)


def as_float32(part: Tensor) -> NDArray[np.float32]:
    """A block as float32[n]: a view where it is float32, else a rounded copy."""
    array: NDArray[np.float32] = borrowed(part.to(torch.float32))
    return array
