"""Whether a device's kernels give the bits of the CPU's, tried once in a process before any weight is coded.

A checkpoint is measured as its device decodes it and may be loaded on any other, so a compiler's mistake must
not get into one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.device_jit import fault
from dynaquant_core.quantize import cpu_path
from dynaquant_core.quantize.buckets import BitBuckets, Buckets, LogBuckets
from dynaquant_core.quantize.codebook import lookup
from dynaquant_core.quantize.cut import Cut
from dynaquant_core.quantize.device import path
from dynaquant_core.quantize.dither_kernels import settle
from dynaquant_core.quantize.lattice import cpu_path as lattice_cpu_path
from dynaquant_core.quantize.lattice import device_path
from dynaquant_core.quantize.lattice.offsets import offsets
from dynaquant_core.quantize.rules import Rules

__all__ = ["agrees"]

logger = logging.getLogger(__name__)

_trying = threading.Lock()

#: Several programs of a kernel, and one that is not full.
SIZE = 4099

KEY, STEP = np.uint64(2**64 - 59), np.float32(0.0137)
PIECES = [(slice(0, SIZE), 0)]

#: For dithered codes: values, gaps and codes of levels, and codes of which some are protected.
LEVELS = tuple(
    np.array(one, dtype)
    for one, dtype in (([-0.5, -0.1, 0.0, 0.4], "f4"), ([0.4, 0.1, 0.4], "f4"), ([2, 3, 0, 4], "u1"))
)
CODES = np.where(np.arange(SIZE) % 9, 2, 1).astype(np.uint8)


def agrees(device: torch.device) -> bool:
    """Tries the kernels; what they do wrong is logged once, and operations of torch serve then.

    Raises what `device_jit.fault` raises.
    """
    with _trying:
        return _tried(device)


@cache
def _tried(device: torch.device) -> bool:
    wrong = fault(lambda: next((name for name, right in _trials(device) if not right), None))
    if wrong is not None:
        logger.warning(
            "Kernels that code weights are not used on %s (%.300s); operations of torch are, which give the "
            "same bits and take several times as long.",
            device,
            wrong,
        )
    return wrong is None


def _trials(device: torch.device) -> Iterator[tuple[str, bool]]:
    """(what was tried, whether both sides agree)."""
    for dtype, buckets in ((torch.float32, BitBuckets(6)), (torch.bfloat16, LogBuckets(0.01))):
        values, gradient = sample(0).to(dtype), sample(1)
        there = values.to(device), gradient.to(device)
        yield (
            f"codes of {dtype}",
            _same(_seam(cpu_path, values, gradient, buckets), _seam(path, *there, buckets)),
        )
        yield (
            f"symbols of {dtype}",
            _same(_lattice(lattice_cpu_path, values), _lattice(device_path, there[0])),
        )
    values = sample(0)
    yield "dithered codes", _same([_dithered_here(values)], [_dithered_there(values.to(device))])


def sample(seed: int) -> Tensor:
    """float32[SIZE]: values of all sizes, zeros of both signs, and such as no symbol reaches."""
    draw = np.random.default_rng(seed)
    values = (0.3 * draw.standard_normal(SIZE)).astype(np.float32)
    values[::5] *= np.float32(10.0) ** draw.integers(-30, 1, values[::5].size).astype(np.float32)
    values[::7], values[3::11], values[5::601] = 0.0, -0.0, 900.0
    return torch.from_numpy(values)


def _seam(side: ModuleType, values: Tensor, gradient: Tensor, buckets: Buckets) -> list[NDArray[Any]]:
    """What a side counts and codes of the sample, and the bits of what it decodes."""
    cut = Cut(0.5, 0.05, 1e-5, "sensitivity")
    levels, rows = lookup(np.linspace(-0.6, 0.6, 14), buckets), np.arange(buckets.size)
    base, codes = (np.arange(SIZE) % 3).astype(np.uint8), np.empty(SIZE, np.uint8)
    joint = Rules.of(cut, buckets, rows, pruned=buckets.size, rows=buckets.size + 2)
    scored = side.score(values, gradient, buckets.unsigned().cells)
    kept = side.assign(values, gradient, buckets.cells, Rules.of(cut, buckets, levels, pruned=0), codes)
    table, exact = (torch.from_numpy(np.arange(size, dtype=np.float32)) for size in (256, kept.size))
    side.place(codes, table.to(values), exact.to(values), out := torch.empty_like(values), PIECES)
    plain = Rules.of(Cut(0.5, prune=0.01), buckets, levels, pruned=0)
    unscored = np.empty(SIZE, np.uint8)
    side.assign(values, None, buckets.cells, plain, unscored)
    return [
        side.count(values, buckets.cells),
        scored[0],
        scored[1].astype(np.float32),  # summed in another order
        side.joint(values, gradient, buckets.cells, joint, base, 3),
        codes,
        unscored,
        kept,
        out.float().cpu().numpy(),
    ]


def _lattice(side: ModuleType, values: Tensor) -> list[NDArray[Any]]:
    """The sample's symbols and escapes, and the bits of what they decode to."""
    symbols, out = np.empty(SIZE, np.uint8), torch.empty_like(values)
    escapes = side.quantise(values, STEP, KEY, symbols)
    limit = np.float32(torch.finfo(values.dtype).max)
    side.dequantise(symbols, escapes, STEP, KEY, limit, out, PIECES)
    return [symbols, escapes, out.float().cpu().numpy()]


def _dithered_here(values: Tensor) -> NDArray[np.uint8]:
    codes, drawn = CODES.copy(), offsets(int(KEY), SIZE)
    settle(codes, values.numpy(), drawn, *LEVELS)
    return codes


def _dithered_there(values: Tensor) -> NDArray[np.uint8]:
    codes = CODES.copy()
    path.settle(values, codes, LEVELS, int(KEY))
    return codes


def _same(here: list[NDArray[Any]], there: list[NDArray[Any]]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(here, there, strict=True))
