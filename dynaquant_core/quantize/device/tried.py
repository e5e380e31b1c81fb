"""The seam's side for devices that have kernels, each kind of which is tried before its first use.

Where a kind cannot be compiled, or has other bits than the CPU's, operations of torch do its work.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize import dither_torch, torch_path
from dynaquant_core.quantize.cells import Cells
from dynaquant_core.quantize.device import path
from dynaquant_core.quantize.device.trial import Kind, agrees, look
from dynaquant_core.quantize.rules import Rules

__all__ = ["assign", "count", "joint", "place", "score", "settle"]


def count(flat: Tensor, cells: Cells) -> NDArray[np.int64]:
    """See `cpu_path.count`."""
    found: NDArray[np.int64] = _side("count", flat, None, cells).count(flat, cells)
    return found


def score(flat: Tensor, gradient: Tensor, cells: Cells) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """See `cpu_path.score`."""
    found: tuple[Any, Any] = _side("score", flat, gradient, cells).score(flat, gradient, cells)
    return found


def joint(
    flat: Tensor, gradient: Tensor | None, cells: Cells, rules: Rules, base: NDArray[np.uint8], levels: int
) -> NDArray[np.int64]:
    """See `cpu_path.joint`."""
    side = _side("joint", flat, gradient, cells)
    found: NDArray[np.int64] = side.joint(flat, gradient, cells, rules, base, levels)
    return found


def assign(
    flat: Tensor, gradient: Tensor | None, cells: Cells, rules: Rules, codes: NDArray[np.uint8]
) -> NDArray[np.uint16]:
    """See `cpu_path.assign`."""
    side = _side("assign", flat, gradient, cells)
    found: NDArray[np.uint16] = side.assign(flat, gradient, cells, rules, codes)
    return found


def place(
    codes: NDArray[np.uint8], table: Tensor, protected: Tensor, out: Tensor, pieces: list[tuple[slice, int]]
) -> None:
    """See `cpu_path.place`."""
    side = path if agrees(out.device, Kind("place", look(out))) else torch_path
    side.place(codes, table, protected, out, pieces)


def settle(
    flat: Tensor,
    codes: NDArray[np.uint8],
    tables: tuple[NDArray[Any], ...],
    draws: int | NDArray[np.float32],
) -> None:
    """See `dither.settle_on_cpu`; ``tables``: the levels' values, gaps and codes."""
    kind = Kind("settle", look(flat), given=not isinstance(draws, int))
    (path if agrees(flat.device, kind) else dither_torch).settle(flat, codes, tables, draws)


def _side(name: str, flat: Tensor, gradient: Tensor | None, cells: Cells) -> ModuleType:
    slope = None if gradient is None else look(gradient)
    kind = Kind(name, look(flat), slope, split=bool(cells.split.size))
    return path if agrees(flat.device, kind) else torch_path
