"""Dithered codes as tensor operations on any device: those of `dither_kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize import torch_path
from dynaquant_core.quantize.cut import PROTECTED
from dynaquant_core.quantize.lattice import torch_path as lattice_torch
from dynaquant_core.quantize.lattice.offsets import as_key

__all__ = ["settle"]


def settle(
    flat: Tensor,
    codes: NDArray[np.uint8],
    tables: tuple[NDArray[Any], ...],
    draws: int | NDArray[np.float32],
) -> None:
    """See `dither.settle_on_cpu`; ``tables``: the levels' values, gaps and codes."""
    device, last = flat.device, tables[0].size - 2
    values, gaps, names = (torch_path.on_device(table, device) for table in tables)
    for part in torch_path.chunks(flat.numel()):
        if isinstance(draws, int):
            offsets = lattice_torch.offsets(as_key(draws), part, device)
        else:
            offsets = torch_path.on_device(draws[part], device)
        weights = flat[part].to(torch.float32)
        low = (torch.searchsorted(values, weights, right=True) - 1).clamp_(0, last)
        drawn = names[low + (weights - values[low] > (offsets + 0.5) * gaps[low])]
        before = torch_path.on_device(codes[part], device)
        codes[part] = torch_path.to_host(torch.where(before == PROTECTED, before, drawn))
