"""The seam's side for devices that have kernels: see `cpu_path`, whose counts and codes these are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize.cells import Cells
from dynaquant_core.quantize.cut import PROTECTED
from dynaquant_core.quantize.device import cell_kernels as kernels
from dynaquant_core.quantize.device import dither_kernels
from dynaquant_core.quantize.device.launch import LAUNCH, programs, starting
from dynaquant_core.quantize.flat import to_bfloat16
from dynaquant_core.quantize.rules import Rules
from dynaquant_core.quantize.torch_path import bring, chunks, on_device, splits, to_host

__all__ = ["assign", "count", "joint", "place", "score", "settle"]

#: Values that one launch counts, less than an int32 counter holds.
MOST: Final = 1 << 30

#: Counters that are worth their clearing, and how many copies of them are there at most.
ROOM: Final = 1 << 18
COPIES: Final = 16

#: Integers of the widths that decoded weights have.
WORDS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def parts(size: int) -> Iterator[slice]:
    """Cuts a flat tensor into what one launch counts."""
    for start in range(0, size, MOST):
        yield slice(start, min(start + MOST, size))


def copies_of(room: int, size: int) -> int:
    """How many copies of its counters a tensor's values are spread over."""
    return max(1, min(COPIES, ROOM // room, size // room))


def count(flat: Tensor, cells: Cells) -> NDArray[np.int64]:
    """See `cpu_path.count`."""
    split, total = splits(cells, flat.device), np.zeros(cells.size, np.int64)
    copies = copies_of(cells.size, flat.numel())
    for part in parts(flat.numel()):
        some = flat[part]
        counts = torch.zeros(copies, cells.size, dtype=torch.int32, device=flat.device)
        with starting(flat.device):
            kernels.count[programs(some)](
                some, split, counts, cells.shift, cells.size, copies, some.numel(),
                bool(split.numel()), **LAUNCH,
            )  # fmt: skip
        total += to_host(counts.sum(0))
    return total


def score(flat: Tensor, gradient: Tensor, cells: Cells) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """See `cpu_path.score`; the energy is summed in another order."""
    split, total = splits(cells, flat.device), np.zeros(cells.size, np.int64)
    energy = torch.zeros(cells.size, dtype=torch.float64, device=flat.device)
    for part in parts(flat.numel()):
        some = flat[part]
        counts = torch.zeros(cells.size, dtype=torch.int32, device=flat.device)
        with starting(flat.device):
            kernels.score[programs(some)](
                some, gradient[part], split, counts, energy, cells.shift, some.numel(),
                bool(split.numel()), **LAUNCH,
            )  # fmt: skip
        total += to_host(counts)
    return total, to_host(energy)


def joint(
    flat: Tensor, gradient: Tensor | None, cells: Cells, rules: Rules, base: NDArray[np.uint8], levels: int
) -> NDArray[np.int64]:
    """See `cpu_path.joint`."""
    split, rows = splits(cells, flat.device), on_device(rules.table(np.int32), flat.device)
    room = rules.rows * levels
    total, copies = np.zeros(room, np.int64), copies_of(room, flat.numel())
    for part in parts(flat.numel()):
        some, codes = flat[part], on_device(base[part], flat.device)
        slope = some if gradient is None else gradient[part]
        counts = torch.zeros(copies, room, dtype=torch.int32, device=flat.device)
        with starting(flat.device):
            kernels.joint[programs(some)](
                some, slope, split, rows, codes, counts, cells.shift, rules.pruned, rules.prune,
                rules.protect, levels, room, copies, some.numel(), gradient is not None,
                bool(split.numel()), **LAUNCH,
            )  # fmt: skip
        total += to_host(counts.sum(0))
    return total.reshape(rules.rows, levels)


def assign(
    flat: Tensor, gradient: Tensor | None, cells: Cells, rules: Rules, codes: NDArray[np.uint8]
) -> NDArray[np.uint16]:
    """See `cpu_path.assign`."""
    split, levels = splits(cells, flat.device), on_device(rules.table(np.uint8), flat.device)
    found = torch.empty(flat.numel(), dtype=torch.uint8, device=flat.device)
    with starting(flat.device):
        kernels.assign[programs(flat)](
            flat, flat if gradient is None else gradient, split, levels, found, cells.shift, rules.prune,
            rules.protect, flat.numel(), gradient is not None, bool(split.numel()), **LAUNCH,
        )  # fmt: skip
    bring(found, codes)
    protected = []
    for part in chunks(flat.numel()):
        kept = flat[part][found[part] == PROTECTED].to(torch.float32).view(torch.int32)
        protected.append(to_bfloat16(to_host(kept).view(np.uint32)))
    return np.concatenate(protected)


def place(
    codes: NDArray[np.uint8],
    table: Tensor,
    protected: Tensor,
    out: Tensor,
    pieces: list[tuple[slice, int]],  # noqa: ARG001 - threads are what other sides need them for
) -> None:
    """See `cpu_path.place`; ``table`` and ``protected`` may be on the CPU."""
    levels, word = on_device(codes, out.device), WORDS[out.element_size()]
    values = table.to(out.device).view(word)
    with starting(out.device):
        kernels.place[programs(levels)](levels, values, out.view(word), levels.numel(), **LAUNCH)
    used = 0
    for part in chunks(levels.numel()) if protected.numel() else ():
        ones = levels[part] == PROTECTED
        some = protected[used : used + int(ones.sum())]
        out[part][ones] = some.to(out.device)
        used += some.numel()


def settle(
    flat: Tensor,
    codes: NDArray[np.uint8],
    tables: tuple[NDArray[Any], ...],
    draws: int | NDArray[np.float32],
) -> None:
    """See `dither.settle_on_cpu`; ``tables``: the levels' values, gaps and codes."""
    given, found = not isinstance(draws, int), on_device(codes, flat.device)
    offsets, key = (flat, draws) if isinstance(draws, int) else (on_device(draws, flat.device), 0)
    here = (on_device(table, flat.device) for table in tables)
    with starting(flat.device):
        dither_kernels.settle[programs(flat)](
            flat, found, offsets, *here, key, tables[0].size - 2, flat.numel(), given, **LAUNCH
        )
    bring(found, codes)
