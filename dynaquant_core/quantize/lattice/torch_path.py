"""The lattice as tensor operations on any device whose float32 division is rounded correctly (CUDA's is).

The same integers and the same roundings as `kernels`, so the same symbols and values, bit for bit.  torch has
no 64-bit unsigned arithmetic everywhere: int64 wraps around alike, and a shift is made logical by a mask.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize.lattice import offset_kernels
from dynaquant_core.quantize.torch_path import chunks, on_device, to_host

__all__ = ["dequantise", "nearest", "offsets", "points", "quantise"]

#: See `kernels`.
MIDDLE, ESCAPE = 128, 0


def signed(word: np.uint64) -> int:
    """The int64 of the same 64 bits."""
    return int(word.astype(np.int64))


def shifted(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def offsets_at(key: np.uint64, index: Tensor) -> Tensor:
    """float32 offsets of any indices int64[n], on their device."""
    numbers = words(key, index >> 2) >> ((index & 3) * 16)
    return centred(numbers & 0xFFFF)


def offsets(key: np.uint64, part: slice, device: torch.device) -> Tensor:
    """float32 offsets of a range of indices, on a device: a quarter of the work of `offsets_at`."""
    first = part.start // 4
    z = words(key, torch.arange(first, -(-part.stop // 4), dtype=torch.int64, device=device))
    numbers = z.view(torch.int16)[part.start - 4 * first : part.stop - 4 * first]  # the lowest bits first
    return centred(numbers.to(torch.int32) & 0xFFFF)


def words(key: np.uint64, block: Tensor) -> Tensor:
    """int64: the word that four indices share."""
    z = (block + 1) * signed(offset_kernels.GOLDEN) + signed(key)
    z = (z ^ shifted(z, 30)) * signed(offset_kernels.FIRST)
    z = (z ^ shifted(z, 27)) * signed(offset_kernels.SECOND)
    return z ^ shifted(z, 31)


def centred(numbers: Tensor) -> Tensor:
    """float32 offsets of 16-bit numbers."""
    return numbers.to(torch.float32).mul_(float(offset_kernels.UNIT)).add_(float(offset_kernels.LOWEST))


def on_same_device(number: np.float32, tensor: Tensor) -> Tensor:
    """A number as a tensor: by a plain number, torch divides through a reciprocal on some devices."""
    return torch.tensor(float(number), dtype=torch.float32, device=tensor.device)


def nearest(values: Tensor, step: np.float32, key: np.uint64, index: Tensor | slice) -> Tensor:
    """float32: number of the lattice point next to each of the values, whose indices are given."""
    drawn = offsets(key, index, values.device) if isinstance(index, slice) else offsets_at(key, index)
    return torch.round(values.to(torch.float32) / on_same_device(step, values) - drawn)


def points(
    k: Tensor, step: np.float32, key: np.uint64, index: Tensor | slice, ends: tuple[np.float32, np.float32]
) -> Tensor:
    """float32: the lattice points of such numbers, none beyond two ends."""
    drawn = offsets(key, index, k.device) if isinstance(index, slice) else offsets_at(key, index)
    decoded = (k.to(torch.float32) + drawn) * on_same_device(step, k)
    return decoded.clamp_(float(ends[0]), float(ends[1]))


def quantise(
    flat: Tensor, step: np.float32, key: np.uint64, symbols: NDArray[np.uint8]
) -> NDArray[np.int32] | None:
    """See `cpu_path.quantise`."""
    found = [np.zeros(0, dtype=np.int32)]
    for part in chunks(flat.numel()):
        k = nearest(flat[part], step, key, part)
        within = k.abs() < MIDDLE
        escaped = k[~within]
        if not bool((escaped.abs() < 2.0**31).all()):
            return None
        symbols[part] = to_host(torch.where(within, k + MIDDLE, ESCAPE).to(torch.uint8))
        found.append(to_host(escaped.to(torch.int32)))
    return np.concatenate(found)


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
    for part, used in pieces:
        codes = on_device(symbols[part], out.device)
        k = codes.to(torch.float32) - MIDDLE
        zeros = codes == ESCAPE
        some = on_device(escapes[used : used + int(zeros.sum())], out.device)
        k[zeros] = some.to(torch.float32)
        out[part] = points(k, step, key, part, ends).to(out.dtype)
