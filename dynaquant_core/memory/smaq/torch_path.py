"""SmaQ as tensor operations on any device: the same draws and roundings as the kernels, so the same bits.

Whole pieces of chunks are worked on at a time, so that what is needed besides does not grow with the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.memory.smaq.chunks import CHUNK, Runs, chunk_count, groups
from dynaquant_core.memory.smaq.cpu_path import scaled
from dynaquant_core.memory.smaq.levels import Levels
from dynaquant_core.memory.smaq.smaq_kernels import HALF_UNIT, UNIT
from dynaquant_core.memory.smaq.statistics import Statistics
from dynaquant_core.quantize.lattice import offset_kernels
from dynaquant_core.quantize.lattice.torch_path import offsets

__all__ = ["encode", "pack_bits", "read", "settle", "unpack_bits"]

#: Chunks worked on at a time.
TOGETHER = 64

#: From an offset in (-.5, .5) to a draw in (0, 1); exact.
TO_DRAW = float(HALF_UNIT) - float(offset_kernels.LOWEST)
assert float(UNIT) == float(offset_kernels.UNIT)


def pack_bits(flags: Tensor) -> Tensor:
    """bool[n] as uint8[ceil(n / 8)], the first in the lowest bit.

    Example:
        >>> pack_bits(torch.tensor([True, False, True])).tolist()
        [5]
    """
    return pack_run(flags.to(torch.uint8), 1)


def unpack_bits(packed: Tensor, size: int) -> Tensor:
    """Undoes `pack_bits`: bool[size]."""
    return unpack_run(packed, 1)[:size].bool()


def pack_run(codes: Tensor, width: int) -> Tensor:
    """uint8[n], each below 2^width, as uint8[ceil(n / 8) width]; spare codes are 0."""
    eights = torch.zeros((-(-codes.numel() // 8), 8), dtype=torch.int64, device=codes.device)
    eights.view(-1)[: codes.numel()] = codes.long()
    shifts = torch.arange(8, device=codes.device)
    words = (eights << (shifts * width)).sum(dim=1)
    return ((words[:, None] >> (shifts[:width] * 8)) & 0xFF).to(torch.uint8).view(-1)


def unpack_run(packed: Tensor, width: int) -> Tensor:
    """Undoes `pack_run`, spare codes included: uint8[8 groups]."""
    shifts = torch.arange(8, device=packed.device)
    words = (packed.view(-1, width).long() << (shifts[:width] * 8)).sum(dim=1)
    return ((words[:, None] >> (shifts * width)) & ((1 << width) - 1)).to(torch.uint8).view(-1)


def pieces(size: int) -> Iterator[tuple[slice, slice]]:
    """(chunks, values) of each piece."""
    for first in range(0, chunk_count(size), TOGETHER):
        last = min(first + TOGETHER, chunk_count(size))
        yield slice(first, last), slice(first * CHUNK, min(last * CHUNK, size))


def drawn(
    part: Tensor, levels: Levels, statistics: Statistics, key: int, values: slice
) -> tuple[Tensor, Tensor, Tensor]:
    """(whether an outlier, inlier's code, outlier's code) of each value of a piece."""
    box, limit, inner_scale, inner_last, outer_scale, outer_last, sign = (
        float(value) for value in levels.geometry()
    )
    mean, inverse = scaled(statistics)
    z = (part.float() - float(mean)) * float(inverse)
    draw = offsets(np.uint64(key), values, part.device) + TO_DRAW
    inside = ((z + box) * inner_scale + draw).clamp_(0, inner_last).to(torch.uint8)
    outside = ((z.abs().clamp_(max=limit) - box) * outer_scale + draw).clamp_(0, outer_last).to(torch.uint8)
    return z.abs() > box, inside, outside | ((z < 0).to(torch.uint8) * int(sign))


def compacted(codes: Tensor, chosen: Tensor) -> Tensor:
    """The chosen of these codes, each chunk's in whole groups of eight; spare codes are 0.

    Args:
        codes: uint8[chunks, CHUNK].
        chosen: bool of that shape.
    """
    counts = chosen.sum(dim=1)
    starts = (groups(counts).cumsum(0) - groups(counts)) * 8
    out = torch.zeros(int(groups(counts).sum()) * 8, dtype=torch.uint8, device=codes.device)
    places = starts[:, None] + chosen.cumsum(dim=1) - 1
    out[places[chosen]] = codes[chosen]
    return out


def in_rows(flat: Tensor, chunks: slice) -> Tensor:
    """[n] as [chunks, CHUNK], filled up with zeros."""
    rows = torch.zeros((chunks.stop - chunks.start, CHUNK), dtype=flat.dtype, device=flat.device)
    rows.view(-1)[: flat.numel()] = flat
    return rows


def encode(
    flat: Tensor, levels: Levels, statistics: Statistics, key: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `cpu_path.encode`; mask, inner and outer are on the tensor's device, the counts on the CPU."""
    masks, inners, outers, counts = [], [], [], []
    for chunks, values in pieces(flat.numel()):
        outlying, inside, outside = drawn(flat[values], levels, statistics, key, values)
        far = in_rows(outlying, chunks)
        near = in_rows(~outlying, chunks)
        masks.append(pack_bits(outlying))
        inners.append(pack_run(compacted(in_rows(inside, chunks), near), levels.inner_width))
        outers.append(pack_run(compacted(in_rows(outside, chunks), far), levels.outer_width))
        counts.append(far.sum(dim=1).to(torch.int16))
    return torch.cat(masks), torch.cat(inners), torch.cat(outers), torch.cat(counts).cpu()


def read(
    mask: Tensor,
    inner: Tensor,
    outer: Tensor,
    counts: Tensor,
    levels: Levels,
    tables: tuple[NDArray[np.float32], NDArray[np.float32]],
    size: int,
    wanted: slice,
) -> Tensor:
    """See `cpu_path.read`; float32[m] on the device of the mask."""
    runs, device = Runs.of(counts, size), mask.device
    near_table, far_table = (torch.from_numpy(table).to(device) for table in tables)
    out = []
    for first in range(wanted.start, wanted.stop, TOGETHER):
        last = min(first + TOGETHER, wanted.stop)
        length = min(last * CHUNK, size) - first * CHUNK
        far = unpack_bits(mask[first * CHUNK // 8 : -(-min(last * CHUNK, size) // 8)], length)
        near_codes = _codes(inner, runs.inner, slice(first, last), levels.inner_width)
        far_codes = _codes(outer, runs.outer, slice(first, last), levels.outer_width)
        rows = in_rows(far, slice(first, last))
        near_places = _places(~rows, runs.inner, slice(first, last)).view(-1)[:length]
        far_places = _places(rows, runs.outer, slice(first, last)).view(-1)[:length]
        found = torch.empty(length, dtype=torch.float32, device=device)
        found[far] = far_table[far_codes[far_places[far]].long()]
        found[~far] = near_table[near_codes[near_places[~far]].long()]
        out.append(found)
    return torch.cat(out) if out else torch.empty(0, device=device)


def _codes(packed: Tensor, ends: Tensor, chunks: slice, width: int) -> Tensor:
    first, last = int(ends[chunks.start]), int(ends[chunks.stop])
    return unpack_run(packed[first * width : last * width], width)


def _places(chosen: Tensor, ends: Tensor, chunks: slice) -> Tensor:
    """Where the code of each chosen value is in what `_codes` returned."""
    starts = (ends[chunks] - ends[chunks.start]).to(chosen.device) * 8
    return starts[:, None] + chosen.cumsum(dim=1) - 1


def settle(
    flat: Tensor,
    levels: Levels,
    statistics: Statistics,
    key: int,
    tables: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> tuple[Tensor, int]:
    """See `cpu_path.settle`."""
    near_table, far_table = (torch.from_numpy(table).to(flat.device) for table in tables)
    out, outliers = torch.empty(flat.numel(), dtype=torch.float32, device=flat.device), 0
    for _, values in pieces(flat.numel()):
        outlying, inside, outside = drawn(flat[values], levels, statistics, key, values)
        out[values] = torch.where(outlying, far_table[outside.long()], near_table[inside.long()])
        outliers += int(outlying.sum())
    return out, outliers
