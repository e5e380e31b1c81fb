"""The seam's CPU side: kernels over slices of the data in a thread pool.

A slice is walked in blocks small enough for the cache, so that nothing of the tensor's own size is ever
copied, whatever its dtype.  Results do not depend on the number of threads (sums of energy: up to rounding).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize import kernels
from dynaquant_core.quantize.cells import Cells
from dynaquant_core.quantize.flat import as_bits, as_float32, host_view, to_bfloat16
from dynaquant_core.quantize.rules import Rules
from dynaquant_core.threads import map_threads, slices

__all__ = ["assign", "count", "joint", "place", "score"]

#: Elements that make a thread worth its hand-over, and elements of one block (1 MiB of float32).
SLICE = 1 << 19
BLOCK = 1 << 18

#: Below so many elements, clearing two counters a cell costs more than counting.
FEW = 1 << 14

Bits = NDArray[np.uint32]


def shares(size: int) -> list[slice]:
    """One slice a thread; an empty array is one empty slice, so that it takes no special way."""
    return slices(size, SLICE) or [slice(0, 0)]


def blocks(part: slice, *, whole: bool = False) -> Iterator[slice]:
    """Cuts a slice into blocks, or leaves it whole."""
    if whole:
        yield part
        return
    for start in range(part.start, part.stop, BLOCK):
        yield slice(start, min(start + BLOCK, part.stop))


def needs_no_copy(array: NDArray[Any], cells: Cells) -> bool:
    """Whether the array's bits are keys already, so that blocks would only cost calls."""
    return array.dtype == np.float32 and not cells.split.size


def scores(weights: NDArray[np.float32], gradient: NDArray[Any]) -> NDArray[np.float32]:
    """|g w| of one block; see `importance.sensitivity`."""
    with np.errstate(all="ignore"):
        product: NDArray[np.float32] = np.multiply(weights, as_float32(gradient))
    return np.abs(product, out=product)


def keys_of(bits: Bits, cells: Cells) -> tuple[Bits, np.uint32]:
    """(keys, shift) that kernels find the cell of each bit pattern by."""
    if not cells.split.size:
        return bits, np.uint32(cells.shift)
    keys = np.empty_like(bits)
    kernels.split_keys(bits, np.uint32(cells.shift), cells.split, keys)
    return keys, np.uint32(0)


def add_counts(bits: Bits, cells: Cells, counts: NDArray[np.uint32]) -> None:
    """Adds a histogram of bit patterns to ``counts`` uint32[cells, 2].

    Only a run of whole, aligned words goes through the kernel; the numbers around it do not.
    """
    keys, shift = keys_of(bits, cells)
    head = min(keys.size, (keys.ctypes.data // 4) % 2)
    tail = head + (keys.size - head) // 2 * 2
    if cells.split.size:
        keys, shift = keys << np.uint32(1), np.uint32(1)
    mask = np.uint64(2 * (cells.size - 1))
    kernels.count_words(
        keys[head:tail].view(np.uint64), np.uint64(shift) - np.uint64(1), mask, counts.reshape(-1)
    )
    loose = np.concatenate((keys[:head], keys[tail:])) >> shift
    np.add.at(counts[:, 0], loose, np.uint32(1))


def count(flat: Tensor, cells: Cells) -> NDArray[np.int64]:
    """int64[cells]: how many values fall into each cell."""
    array = host_view(flat)
    whole = needs_no_copy(array, cells)

    def work(part: slice) -> NDArray[np.int64]:
        lanes = np.zeros((cells.size, 2), dtype=np.uint32)
        for block in blocks(part, whole=whole):
            add_counts(as_bits(array[block]), cells, lanes)
        counts = np.zeros(cells.size, dtype=np.int64)
        kernels.fold_lanes(lanes.reshape(-1), counts)
        return counts

    if array.size < FEW:
        return np.bincount(cells.of(as_bits(array)), minlength=cells.size).astype(np.int64, copy=False)
    return add(map_threads(work, shares(array.size)))


def score(flat: Tensor, gradient: Tensor, cells: Cells) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(int64[cells], float64[cells]): how many scores |g w| each cell holds, and the energy of those w."""
    array, slope = host_view(flat), host_view(gradient)

    def work(part: slice) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        counts = np.zeros(cells.size, dtype=np.int64)
        energy = np.zeros(cells.size, dtype=np.float64)
        for block in blocks(part):
            weights = as_float32(array[block])
            keys, shift = keys_of(scores(weights, slope[block]).view(np.uint32), cells)
            kernels.score_cells(keys, shift, weights, counts, energy)
        return counts, energy

    done = map_threads(work, shares(array.size))
    return add([counts for counts, _ in done]), add([energy for _, energy in done])


def joint(
    flat: Tensor, gradient: Tensor | None, cells: Cells, rules: Rules, base: NDArray[np.uint8], levels: int
) -> NDArray[np.int64]:
    """int64[rows, levels]: how many weights fall into each row (see `Rules`) and base code."""
    array = host_view(flat)
    slope = None if gradient is None else host_view(gradient)
    rows, width = rules.table(np.uint32), np.uint64(levels)
    thresholds = np.uint64(rules.pruned), np.float32(rules.prune), np.float32(rules.protect)

    def work(part: slice) -> NDArray[np.int64]:
        counts = np.zeros(rules.rows * levels, dtype=np.int64)
        for block in blocks(part):
            bits = as_bits(array[block])
            keys, shift = keys_of(bits, cells)
            if slope is None:
                kernels.count_joint(keys, shift, rows, base[block], width, counts)
            else:
                marks = scores(bits.view(np.float32), slope[block])
                kernels.count_scored(keys, shift, rows, marks, *thresholds, base[block], width, counts)
        return counts

    return add(map_threads(work, shares(array.size))).reshape(rules.rows, levels)


def assign(
    flat: Tensor, gradient: Tensor | None, cells: Cells, rules: Rules, codes: NDArray[np.uint8]
) -> NDArray[np.uint16]:
    """Writes the code of each weight to ``codes`` uint8[n]; returns the protected ones in order, bfloat16."""
    array = host_view(flat)
    slope = None if gradient is None else host_view(gradient)
    levels = rules.table(np.uint8)
    thresholds = np.float32(rules.prune), np.float32(rules.protect)

    def work(part: slice) -> list[NDArray[np.uint16]]:
        kept = np.empty(min(part.stop - part.start, BLOCK), dtype=np.uint32)
        pieces = [np.zeros(0, dtype=np.uint16)]
        for block in blocks(part):
            bits, out = as_bits(array[block]), codes[block]
            keys, shift = keys_of(bits, cells)
            if slope is None:
                found = kernels.assign_levels(keys, shift, levels, bits, out, kept)
            else:
                marks = scores(bits.view(np.float32), slope[block])
                found = kernels.assign_scored(keys, shift, levels, marks, *thresholds, bits, out, kept)
            pieces.append(to_bfloat16(kept[:found]))
        return pieces

    done = map_threads(work, shares(array.size))
    return np.concatenate([piece for pieces in done for piece in pieces])


def place(
    codes: NDArray[np.uint8], table: Tensor, protected: Tensor, out: Tensor, pieces: list[tuple[slice, int]]
) -> None:
    """Decodes into ``out``.

    Args:
        codes: uint8[n].
        table: [256], value of each level, in the dtype of ``out``.
        protected: [m], in the dtype of ``out``.
        out: flat and contiguous, [n].
        pieces: parts of the codes, each with the number of protected weights before it.
    """
    width = {2: np.uint16, 4: np.uint32, 8: np.uint64}[out.element_size()]
    target, levels = host_view(out).view(width), host_view(table).view(width)
    kept = host_view(protected).view(width)

    def work(piece: tuple[slice, int]) -> None:
        part, start = piece
        kernels.place(codes[part], levels, kept[start:], target[part])

    map_threads(work, pieces)


def add(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Adds the threads' results up in order."""
    total = parts[0]
    for part in parts[1:]:
        total += part
    return total
