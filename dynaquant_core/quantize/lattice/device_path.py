"""The lattice on a device that has kernels: see `cpu_path`, whose symbols and values these are.

Escapes are worked on in chunks, as everything is in `torch_path`: on a fine lattice nearly all values escape.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize.device import lattice_kernels as kernels
from dynaquant_core.quantize.device.launch import LAUNCH, programs, starting
from dynaquant_core.quantize.lattice.torch_path import ESCAPE, nearest, points
from dynaquant_core.quantize.torch_path import bring, chunks, on_device, to_host

__all__ = ["dequantise", "quantise"]


def quantise(
    flat: Tensor, step: np.float32, key: np.uint64, symbols: NDArray[np.uint8]
) -> NDArray[np.int32] | None:
    """See `cpu_path.quantise`."""
    found = torch.empty(flat.numel(), dtype=torch.uint8, device=flat.device)
    escaped = torch.zeros(1, dtype=torch.int64, device=flat.device)
    with starting(flat.device):
        kernels.quantise[programs(flat)](flat, found, escaped, float(step), int(key), flat.numel(), **LAUNCH)
    bring(found, symbols)
    escapes = [np.zeros(0, dtype=np.int32)]
    for part in chunks(flat.numel()) if int(escaped) else ():
        where = (found[part] == ESCAPE).nonzero().view(-1)
        k = nearest(flat[part][where], step, key, where + part.start)
        if not bool((k.abs() < 2.0**31).all()):
            return None
        escapes.append(to_host(k.to(torch.int32)))
    return np.concatenate(escapes)


def dequantise(
    symbols: NDArray[np.uint8],
    escapes: NDArray[np.int32],
    step: np.float32,
    key: np.uint64,
    ends: tuple[np.float32, np.float32],
    out: Tensor,
    pieces: list[tuple[slice, int]],  # noqa: ARG001 - threads are what other sides need them for
) -> None:
    """See `cpu_path.dequantise`."""
    codes, halved = on_device(symbols, out.device), out.dtype == torch.bfloat16
    target = out.view(torch.int16) if halved else out
    with starting(out.device):
        kernels.place[programs(codes)](
            codes, target, float(step), *map(float, ends), int(key), codes.numel(), halved, **LAUNCH
        )
    used = 0
    for part in chunks(codes.numel()) if escapes.size else ():
        where = (codes[part] == ESCAPE).nonzero().view(-1)
        k = on_device(escapes[used : used + where.numel()], out.device)
        out[part][where] = points(k, step, key, where + part.start, ends).to(out.dtype)
        used += where.numel()
