"""SmaQ in host memory: kernels over slices of chunks, on as many threads as there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.memory.smaq import smaq_kernels as kernels
from dynaquant_core.memory.smaq.chunks import CHUNK, Runs, chunk_count
from dynaquant_core.memory.smaq.levels import Gaps, Levels, within_ends
from dynaquant_core.memory.smaq.statistics import Statistics
from dynaquant_core.quantize.flat import as_float32, host_view
from dynaquant_core.threads import map_threads, slices

__all__ = ["Tables", "encode", "read", "settle"]

#: What codes of inliers and of outliers stand for.
Tables: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float32]]

#: Chunks that make a thread worth it.
SLICE = 4


def scaled(statistics: Statistics) -> tuple[np.float32, np.float32]:
    """Mean and 1 / std as the kernels take them."""
    return np.float32(statistics.mean), np.float32(1) / np.float32(statistics.std)


def joined(tables: Tables, dtype: torch.dtype) -> Tensor:
    """The values of inliers and behind them those of outliers, in the dtype that they are decoded to."""
    return torch.from_numpy(np.concatenate(tables)).to(dtype)


def scratch() -> tuple[NDArray[Any], ...]:
    """(words, the same as 16-bit numbers, codes of inliers, codes of outliers)."""
    words = np.empty(CHUNK // 4 + 2, np.uint64)
    return words, words.view(np.uint16), np.zeros(CHUNK + 8, np.uint8), np.zeros(CHUNK + 8, np.uint8)


def chunks_of(part: slice, size: int) -> Iterator[tuple[int, slice]]:
    """(index, its values) of each chunk of a slice of chunks."""
    for chunk in range(part.start, part.stop):
        yield chunk, slice(chunk * CHUNK, min((chunk + 1) * CHUNK, size))


def encode(
    flat: Tensor, levels: Levels, statistics: Statistics, key: int, gaps: Gaps | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes floating[n] of host memory: (mask, inner, outer uint8 tensors, outliers int16[chunks]).

    Args:
        flat: finite.
        levels: where the levels lie.
        statistics: of the values; the deviation is above 0.
        key: what the draws follow from.
        gaps: see `levels.within_ends`.
    """
    array, size = host_view(within_ends(flat, gaps)), flat.numel()
    mask = torch.empty(-(-size // 8), dtype=torch.uint8, device="cpu")
    counts = torch.empty(chunk_count(size), dtype=torch.int16, device="cpu")
    mean, inverse = scaled(statistics)
    geometry, flags, found = levels.geometry(), mask.numpy(), counts.numpy()

    def look(part: slice) -> None:
        for chunk, values in chunks_of(part, size):
            bits = flags[values.start // 8 : -(-values.stop // 8)]
            found[chunk] = kernels.classify(as_float32(array[values]), mean, inverse, geometry.box, bits)

    map_threads(look, slices(counts.numel(), SLICE))
    runs = Runs.of(counts, size)
    widths = np.uint64(levels.inner_width), np.uint64(levels.outer_width)
    inner = torch.empty(int(runs.inner[-1]) * levels.inner_width, dtype=torch.uint8, device="cpu")
    outer = torch.empty(int(runs.outer[-1]) * levels.outer_width, dtype=torch.uint8, device="cpu")
    near, far = inner.numpy(), outer.numpy()
    inner_ends = (runs.inner * levels.inner_width).tolist()
    outer_ends = (runs.outer * levels.outer_width).tolist()

    def write(part: slice) -> None:
        words, halves, insides, outsides = scratch()
        for chunk, values in chunks_of(part, size):
            kernels.write_chunk(
                as_float32(array[values]),
                mean,
                inverse,
                geometry,
                widths,
                np.uint64(key),
                np.uint64(values.start),
                words,
                halves,
                insides,
                outsides,
                near[inner_ends[chunk] : inner_ends[chunk + 1]],
                far[outer_ends[chunk] : outer_ends[chunk + 1]],
            )

    map_threads(write, slices(counts.numel(), SLICE))
    return mask, inner, outer, counts


def read(
    mask: Tensor,
    inner: Tensor,
    outer: Tensor,
    counts: Tensor,
    levels: Levels,
    tables: Tables,
    size: int,
    wanted: slice,
    dtype: torch.dtype,
) -> Tensor:
    """Values of a slice of chunks, dtype[m]; the other arguments as `encode` returned and took them."""
    runs = Runs.of(counts, size)
    widths = np.uint64(levels.inner_width), np.uint64(levels.outer_width)
    inner_ends = (runs.inner * levels.inner_width).tolist()
    outer_ends = (runs.outer * levels.outer_width).tolist()
    outliers, first = counts.tolist(), wanted.start * CHUNK
    out = torch.empty(min(wanted.stop * CHUNK, size) - first, dtype=torch.float32, device="cpu")
    flags, near, far, decoded = mask.numpy(), inner.numpy(), outer.numpy(), out.numpy()

    def work(part: slice) -> None:
        _, _, insides, outsides = scratch()
        for chunk, values in chunks_of(slice(wanted.start + part.start, wanted.start + part.stop), size):
            kernels.read_chunk(
                flags[values.start // 8 : -(-values.stop // 8)],
                near[inner_ends[chunk] : inner_ends[chunk + 1]],
                far[outer_ends[chunk] : outer_ends[chunk + 1]],
                np.uint64(outliers[chunk]),
                widths,
                *tables,
                insides,
                outsides,
                decoded[values.start - first : values.stop - first],
            )

    map_threads(work, slices(wanted.stop - wanted.start, SLICE))
    return out.to(dtype)


def settle(
    flat: Tensor,
    levels: Levels,
    statistics: Statistics,
    key: int,
    tables: Tables,
    dtype: torch.dtype,
    gaps: Gaps | None = None,
) -> tuple[Tensor, int]:
    """(dtype[n], what `read` gives of what `encode` wrote; how many are outliers), without packing."""
    array, size = host_view(within_ends(flat, gaps)), flat.numel()
    mean, inverse = scaled(statistics)
    geometry, out = levels.geometry(), torch.empty(size, dtype=torch.float32, device="cpu")

    def work(part: slice) -> int:
        words, halves, _, _ = scratch()
        found = 0
        for _, values in chunks_of(part, size):
            found += kernels.settle(
                as_float32(array[values]),
                mean,
                inverse,
                geometry,
                np.uint64(key),
                np.uint64(values.start),
                words,
                halves,
                *tables,
                out.numpy()[values],
            )
        return found

    outliers = sum(map_threads(work, slices(chunk_count(size), SLICE)))
    return out.to(dtype), outliers
