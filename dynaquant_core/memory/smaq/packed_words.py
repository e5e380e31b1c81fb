"""Codes of some bits packed into bytes by tensor operations: eight codes a word, its lowest byte first there.

A word holds eight codes, a byte each; they move together in three steps, neighbours, then pairs, then fours,
so that a run takes a dozen operations on an eighth of its codes, whatever the width.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["filled", "pack_bits", "pack_run", "unpack_bits", "unpack_run"]


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
    bytes_of = filled(codes, -(-codes.numel() // 8) * 8)
    if width == 8 or not codes.numel():
        return bytes_of
    words = bytes_of.view(torch.int64)
    for size, bits in _steps(width):
        low = _fields(size, bits)
        words = (words & low) | ((words >> (size - bits)) & (low << bits))
    return words.view(torch.uint8).view(-1, 8)[:, :width].reshape(-1)


def unpack_run(packed: Tensor, width: int) -> Tensor:
    """Undoes `pack_run`, spare codes included: uint8[8 groups]."""
    if width == 8 or not packed.numel():
        return packed
    eights = torch.zeros((packed.numel() // width, 8), dtype=torch.uint8, device=packed.device)
    eights[:, :width] = packed.view(-1, width)
    words = eights.view(-1).view(torch.int64)
    for size, bits in reversed(_steps(width)):
        low = _fields(size, bits)
        words = (words & low) | ((words & (low << bits)) << (size - bits))
    return words.view(torch.uint8)


def _steps(width: int) -> list[tuple[int, int]]:
    """(bits of a field, of them in use) as one, two and four codes are side by side."""
    return [(8 * codes, width * codes) for codes in (1, 2, 4)]


def _fields(size: int, bits: int) -> int:
    """The lowest ``bits`` of every other field of ``size`` bits in a word, from the first one on."""
    return sum(((1 << bits) - 1) << start for start in range(0, 64, 2 * size))


def filled(flat: Tensor, size: int) -> Tensor:
    """[n] as [size], with zeros behind; itself where it is as long."""
    if flat.numel() == size:
        return flat
    out = torch.zeros(size, dtype=flat.dtype, device=flat.device)
    out[: flat.numel()] = flat
    return out
