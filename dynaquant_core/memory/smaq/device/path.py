"""SmaQ on a device by kernels of its own: the bits of the other paths in a few launches a tensor.

float64 is rounded to float32 first, as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from dynaquant_core.device_jit import on
from dynaquant_core.memory.smaq.chunks import CHUNK, chunk_count, run_groups
from dynaquant_core.memory.smaq.cpu_path import Tables, joined, scaled
from dynaquant_core.memory.smaq.device import code_kernels as kernels
from dynaquant_core.memory.smaq.device.flag_kernels import TILE
from dynaquant_core.memory.smaq.levels import Gaps, Levels
from dynaquant_core.memory.smaq.statistics import Statistics

__all__ = ["ABOUT", "FOUND", "Draft", "drafted", "encode", "read", "settle"]

#: No fused multiplications and additions: every operation is rounded, as on the CPU.
LAUNCH: Final[dict[str, Any]] = {"CHUNK": CHUNK, "TILE": TILE, "num_warps": 8, "enable_fp_fusion": False}

#: Programs that a multiprocessor holds at once, where each goes through several chunks.
RESIDENT: Final = 4

#: Bytes of what `survey_kernels.combined` finds, and of mean and 1 / deviation.
FOUND, ABOUT = 40, 8

#: Integers of the widths that decoded values have.
WORDS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Draft:
    """What of a tensor's code was made before the host knew its statistics.

    Args:
        about: mean and 1 / deviation that it was made with.
        mask: flags of outliers.
        counts: int16[chunks] on the device.
        outliers: the same on the CPU.
    """

    about: tuple[float, float]
    mask: Tensor
    counts: Tensor
    outliers: Tensor


def encode(
    flat: Tensor,
    levels: Levels,
    statistics: Statistics,
    key: int,
    gaps: Gaps | None = None,
    draft: Draft | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `cpu_path.encode`; mask, inner and outer are on the tensor's device, the counts on the CPU."""
    flat, size, device = in_float32(flat), flat.numel(), flat.device
    chunks, about = chunk_count(size), numbers(statistics, gaps)
    geometry = geometry_on(levels, device)
    if draft is None or not fits(draft, about, gaps):
        draft = classified(flat, geometry, about)
    inner, outer = (
        torch.empty(groups * width, dtype=torch.uint8, device=device)
        for groups, width in zip(
            run_groups(draft.outliers, size), (levels.inner_width, levels.outer_width), strict=True
        )
    )
    programs = min(chunks, busy(device))
    scratch = torch.empty(programs * 2 * (CHUNK + 8), dtype=torch.uint8, device=device)
    widths = levels.inner_width, levels.outer_width
    with on(device):
        kernels.write[(programs,)](
            flat, geometry, draft.counts, inner, outer, scratch, *about, key, size, chunks, *widths, **LAUNCH
        )
    return draft.mask, inner, outer, draft.outliers


def fits(draft: Draft, about: tuple[float, ...], gaps: Gaps | None) -> bool:
    """Whether a draft is of the numbers that a tensor is coded with after all."""
    return gaps is None and draft.about == about[:2]


def drafted(flat: Tensor, levels: Levels, partial: Tensor, answer: Tensor) -> tuple[Tensor, Draft]:
    """Flags of outliers by statistics that are on the device.

    Args:
        flat: see `encode`.
        levels: with which it will be coded.
        partial: what `survey_kernels.survey` wrote.
        answer: uint8[FOUND + ABOUT + 2 chunks] on the device, to be filled.

    Returns:
        (``answer`` on the CPU, for which the host waits; the draft).
    """
    size, chunks = flat.numel(), chunk_count(flat.numel())
    mask = flat.new_empty(-(-size // 8), dtype=torch.uint8)
    found, about, counts = parted(answer)
    kernels.classify_first[(chunks,)](
        flat, geometry_on(levels, flat.device), partial, mask, counts, found, about, size, chunks, **LAUNCH
    )
    heard = answer.cpu()
    _, numbers, outliers = parted(heard)
    mean, inverse = numbers.tolist()
    return heard, Draft((mean, inverse), mask, counts, outliers)


def parted(answer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(float64[5], float32[2], int16[chunks]) of an answer."""
    found, about, counts = answer[:FOUND], answer[FOUND : FOUND + ABOUT], answer[FOUND + ABOUT :]
    return found.view(torch.float64), about.view(torch.float32), counts.view(torch.int16)


def classified(flat: Tensor, geometry: Tensor, about: tuple[float, ...]) -> Draft:
    """Flags of outliers and how many there are; the host waits for the second."""
    mask = flat.new_empty(-(-flat.numel() // 8), dtype=torch.uint8)
    counts = flat.new_empty(chunk_count(flat.numel()), dtype=torch.int16)
    with on(flat.device):
        kernels.classify[(counts.numel(),)](flat, geometry, mask, counts, *about, flat.numel(), **LAUNCH)
    return Draft((about[0], about[1]), mask, counts, counts.cpu())


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
    device, chunks = mask.device, wanted.stop - wanted.start
    values = min(wanted.stop * CHUNK, size) - wanted.start * CHUNK
    out = torch.empty(values, dtype=dtype, device=device)
    word = WORDS[dtype.itemsize]
    table = joined(tables, dtype)
    # One copy to the device for both; it does not wait for what the device is at.
    moved = sent(torch.cat((table.view(torch.uint8), counts.view(torch.uint8))), device)
    with on(device):
        kernels.read[(min(chunks, busy(device)),)](
            mask,
            inner,
            outer,
            moved[table.nbytes :].view(torch.int16),
            moved[: table.nbytes].view(word),
            out.view(word),
            size,
            wanted.start,
            wanted.stop,
            levels.inner_width,
            levels.outer_width,
            **LAUNCH,
        )
    return out


def settle(
    flat: Tensor,
    levels: Levels,
    statistics: Statistics,
    key: int,
    tables: Tables,
    dtype: torch.dtype,
    gaps: Gaps | None = None,
    draft: Draft | None = None,
) -> tuple[Tensor, int]:
    """See `cpu_path.settle`; what was drafted says how many are outliers, so that nothing is waited for."""
    flat, size, device = in_float32(flat), flat.numel(), flat.device
    out = torch.empty(size, dtype=dtype, device=device)
    counts = torch.empty(chunk_count(size), dtype=torch.int16, device=device)
    word = WORDS[dtype.itemsize]
    table = sent(joined(tables, dtype), device).view(word)
    geometry, about = geometry_on(levels, device), numbers(statistics, gaps)
    with on(device):
        kernels.settle[(counts.numel(),)](
            flat, geometry, table, out.view(word), counts, *about, key, size, levels.inner_width, **LAUNCH
        )
    known = draft is not None and fits(draft, about, gaps)
    return out, int(draft.outliers.sum() if draft is not None and known else counts.sum())


def in_float32(flat: Tensor) -> Tensor:
    """The tensor; float64 rounded to float32."""
    return flat.float() if flat.dtype == torch.float64 else flat


def numbers(statistics: Statistics, gaps: Gaps | None) -> tuple[float, ...]:
    """(mean, 1 / deviation, and the gaps that ends cut), as the kernels take them."""
    mean, inverse = scaled(statistics)
    return float(mean), float(inverse), *(gaps or Gaps())


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A small tensor on a device, without waiting for what that is at."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


@cache
def geometry_on(levels: Levels, device: torch.device) -> Tensor:
    """`levels.Geometry` as float32[7] on a device."""
    return torch.tensor([float(value) for value in levels.geometry()], dtype=torch.float32, device=device)


@cache
def busy(device: torch.device) -> int:
    """Programs that keep a device busy."""
    if device.type != "cuda":
        return RESIDENT
    return RESIDENT * int(torch.cuda.get_device_properties(device).multi_processor_count)
