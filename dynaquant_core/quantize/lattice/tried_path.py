"""The lattice on a device that has kernels, each kind of which is tried before its first use.

Where a kind cannot be compiled, or has other bits than the CPU's, operations of torch do its work.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize.device.trial import Kind, agrees, look
from dynaquant_core.quantize.lattice import device_path, torch_path

__all__ = ["dequantise", "quantise"]


def quantise(
    flat: Tensor, step: np.float32, key: np.uint64, symbols: NDArray[np.uint8]
) -> NDArray[np.int32] | None:
    """See `cpu_path.quantise`."""
    side = device_path if agrees(flat.device, Kind("quantise", look(flat))) else torch_path
    found: NDArray[np.int32] | None = side.quantise(flat, step, key, symbols)
    return found


def dequantise(
    symbols: NDArray[np.uint8],
    escapes: NDArray[np.int32],
    step: np.float32,
    key: np.uint64,
    ends: tuple[np.float32, np.float32],
    out: Tensor,
    pieces: list[tuple[slice, int]],
) -> None:
    """See `cpu_path.dequantise`."""
    side = device_path if agrees(out.device, Kind("dequantise", look(out))) else torch_path
    side.dequantise(symbols, escapes, step, key, ends, out, pieces)
