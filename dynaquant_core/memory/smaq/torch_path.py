"""SmaQ as tensor operations on any device: the same draws and roundings as the kernels, so the same bits.

Whole pieces of chunks are worked on at a time, so that what is needed besides does not grow with the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dynaquant_core.memory.smaq.chunks import CHUNK, Runs, chunk_count
from dynaquant_core.memory.smaq.cpu_path import Tables, joined, scaled
from dynaquant_core.memory.smaq.levels import Gaps, Levels, within_ends
from dynaquant_core.memory.smaq.packed_words import filled, pack_bits, pack_run, unpack_bits, unpack_run
from dynaquant_core.memory.smaq.smaq_kernels import HALF_UNIT, UNIT
from dynaquant_core.memory.smaq.statistics import Statistics
from dynaquant_core.quantize.lattice import offset_kernels
from dynaquant_core.quantize.lattice.torch_path import offsets

__all__ = ["encode", "pieces", "read", "settle"]

#: Chunks worked on at a time: enough that a device is busy, few enough that they take little of its memory.
TOGETHER = 256

#: From an offset in (-.5, .5) to a draw in (0, 1); exact.
TO_DRAW = float(HALF_UNIT) - float(offset_kernels.LOWEST)
assert float(UNIT) == float(offset_kernels.UNIT)


def pieces(size: int) -> Iterator[tuple[slice, slice]]:
    """(chunks, values) of each piece."""
    for first in range(0, chunk_count(size), TOGETHER):
        last = min(first + TOGETHER, chunk_count(size))
        yield slice(first, last), slice(first * CHUNK, min(last * CHUNK, size))


def standardised(part: Tensor, statistics: Statistics) -> Tensor:
    """float32 distances from the mean, in standard deviations."""
    mean, inverse = scaled(statistics)
    return (part.float() - float(mean)) * float(inverse)


def drawn(
    part: Tensor, levels: Levels, statistics: Statistics, key: int, values: slice
) -> tuple[Tensor, Tensor, Tensor]:
    """(whether an outlier, inlier's code, outlier's code) of each value of a piece."""
    box, limit, inner_scale, inner_last, outer_scale, outer_last, sign = (
        float(value) for value in levels.geometry()
    )
    z = standardised(part, statistics)
    draw = offsets(np.uint64(key), values, part.device) + TO_DRAW
    inside = ((z + box) * inner_scale + draw).clamp_(0, inner_last).to(torch.uint8)
    outside = ((z.abs().clamp_(max=limit) - box) * outer_scale + draw).clamp_(0, outer_last).to(torch.uint8)
    return z.abs() > box, inside, outside | ((z < 0).to(torch.uint8) * int(sign))


def in_rows(flat: Tensor, chunks: slice) -> Tensor:
    """[n] as [chunks, CHUNK], filled up with zeros."""
    return filled(flat, (chunks.stop - chunks.start) * CHUNK).view(-1, CHUNK)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the codes of a tensor are: the inliers' of some chunks, and then the outliers' of the same.

    What is needed of the ends lies on the device too, so that no piece has to wait for it.
    """

    runs: Runs
    inner: Tensor
    outer: Tensor

    @classmethod
    def of(cls, counts: Tensor, size: int, device: torch.device) -> Places:
        """Places of ``size`` values with so many outliers a chunk (on the CPU)."""
        runs = Runs.of(counts, size)
        return cls(runs, runs.inner.to(device, torch.int32), runs.outer.to(device, torch.int32))

    def parts(self, chunks: slice) -> tuple[slice, slice]:
        """Groups of eight codes of some chunks, in the run of inliers and in that of outliers."""
        first, last = chunks.start, chunks.stop
        inner, outer = self.runs.inner, self.runs.outer
        return slice(int(inner[first]), int(inner[last])), slice(int(outer[first]), int(outer[last]))

    def within(self, outlying: Tensor, chunks: slice) -> Tensor:
        """int32[n]: place of each value's code among the codes of some chunks.

        Args:
            outlying: bool[n].
            chunks: theirs.
        """
        near, _ = self.parts(chunks)
        rows = in_rows(outlying, chunks)
        rank = rows.cumsum(dim=1, dtype=torch.int32)
        ahead = (self.outer[chunks] - self.outer[chunks.start] + (near.stop - near.start)) * 8 - 1
        far = rank + ahead[:, None]
        counted = torch.arange(CHUNK, dtype=torch.int32, device=rows.device)
        near_ahead = (self.inner[chunks] - self.inner[chunks.start]) * 8
        place = torch.where(rows, far, counted - rank + near_ahead[:, None])
        return place.view(-1)[: outlying.numel()]


def encode(
    flat: Tensor, levels: Levels, statistics: Statistics, key: int, gaps: Gaps | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `cpu_path.encode`; mask, inner and outer are on the tensor's device, the counts on the CPU."""
    flat = within_ends(flat, gaps)
    size, device, box = flat.numel(), flat.device, float(levels.geometry()[0])
    counted = [
        in_rows(standardised(flat[values], statistics).abs() > box, chunks).sum(dim=1)
        for chunks, values in pieces(size)
    ]
    counts = torch.cat(counted).to(torch.int16).cpu()  # all that the host waits for
    places = Places.of(counts, size, device)
    widths = levels.inner_width, levels.outer_width
    mask = torch.empty(-(-size // 8), dtype=torch.uint8, device=device)
    runs = [
        torch.empty(int(ends[-1]) * width, dtype=torch.uint8, device=device)
        for ends, width in zip((places.runs.inner, places.runs.outer), widths, strict=True)
    ]
    for chunks, values in pieces(size):
        outlying, inside, outside = drawn(flat[values], levels, statistics, key, values)
        mask[values.start // 8 : -(-values.stop // 8)] = pack_bits(outlying)
        near, far = places.parts(chunks)
        room = near.stop - near.start + far.stop - far.start
        codes = torch.zeros(room * 8, dtype=torch.uint8, device=device)
        codes.scatter_(0, places.within(outlying, chunks).long(), torch.where(outlying, outside, inside))
        border = (near.stop - near.start) * 8
        for run, part, some, width in zip(
            runs, (near, far), (codes[:border], codes[border:]), widths, strict=True
        ):
            run[part.start * width : part.stop * width] = pack_run(some, width)
    return mask, runs[0], runs[1], counts


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
    """See `cpu_path.read`; on the device of the mask."""
    places, device = Places.of(counts, size, mask.device), mask.device
    table, behind = joined(tables, dtype).to(device), len(tables[0])
    first_value = wanted.start * CHUNK
    out = torch.empty(max(min(wanted.stop * CHUNK, size) - first_value, 0), dtype=dtype, device=device)
    for first in range(wanted.start, wanted.stop, TOGETHER):
        chunks = slice(first, min(first + TOGETHER, wanted.stop))
        values = slice(first * CHUNK, min(chunks.stop * CHUNK, size))
        outlying = unpack_bits(mask[values.start // 8 : -(-values.stop // 8)], values.stop - values.start)
        near, far = places.parts(chunks)
        codes = torch.cat(
            [
                unpack_run(run[part.start * width : part.stop * width], width)
                for run, part, width in (
                    (inner, near, levels.inner_width),
                    (outer, far, levels.outer_width),
                )
            ]
        )
        level = codes.index_select(0, places.within(outlying, chunks)).int()
        level += outlying.int() * behind
        out[values.start - first_value : values.stop - first_value] = table.index_select(0, level)
    return out


def settle(
    flat: Tensor,
    levels: Levels,
    statistics: Statistics,
    key: int,
    tables: Tables,
    dtype: torch.dtype,
    gaps: Gaps | None = None,
) -> tuple[Tensor, int]:
    """See `cpu_path.settle`."""
    flat = within_ends(flat, gaps)
    table, behind = joined(tables, dtype).to(flat.device), len(tables[0])
    out = torch.empty(flat.numel(), dtype=dtype, device=flat.device)
    outliers = torch.zeros((), dtype=torch.int64, device=flat.device)
    for _, values in pieces(flat.numel()):
        outlying, inside, outside = drawn(flat[values], levels, statistics, key, values)
        level = torch.where(outlying, outside.int() + behind, inside.int())
        out[values] = table.index_select(0, level)
        outliers += outlying.sum()
    return out, int(outliers)
