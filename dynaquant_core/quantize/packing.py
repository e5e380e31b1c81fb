"""Codes of fixed width, packed without gaps: bit w i + b of the little-endian run is bit b of code i."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["code_width", "pack", "packed_bytes", "unpack"]

Bytes = NDArray[np.uint8]


def code_width(bins: int) -> int:
    """Bits of a code of ``bins`` levels, 1 to 8 for 2 to 256 of them (1 for a single one).

    Example:
        >>> [code_width(bins) for bins in (1, 2, 9, 256)]
        [1, 1, 4, 8]
    """
    return max(1, (bins - 1).bit_length())


def packed_bytes(count: int, width: int) -> int:
    """Bytes of ``count`` codes of ``width`` bits."""
    return (count * width + 7) // 8


def pack(codes: Bytes, width: int) -> Bytes:
    """Packs uint8[n], each below 2^width, into uint8[packed_bytes(n, width)]; spare bits are 0.

    Example:
        >>> pack(np.uint8([1, 2, 7]), 3).tolist() == [0b11_010_001, 0b1]
        True
    """
    eights = np.zeros((-(-codes.size // 8), 8), np.uint8)
    eights.reshape(-1)[: codes.size] = codes
    words = np.zeros(eights.shape[0], "<u8")
    for place in range(8):
        words |= eights[:, place].astype("<u8") << np.uint64(width * place)
    return words.view(np.uint8).reshape(-1, 8)[:, :width].reshape(-1)[: packed_bytes(codes.size, width)]


def unpack(packed: Bytes, count: int, width: int) -> Bytes:
    """Undoes `pack`: uint8[count], each below 2^width; ``packed`` is uint8[packed_bytes(count, width)].

    Example:
        >>> unpack(pack(np.uint8([1, 2, 7]), 3), 3, 3).tolist()
        [1, 2, 7]
    """
    groups = -(-count // 8)
    runs = np.zeros(groups * width, np.uint8)
    runs[: packed.size] = packed
    eights = np.zeros((groups, 8), np.uint8)
    eights[:, :width] = runs.reshape(groups, width)
    words = eights.reshape(-1).view("<u8")
    codes = np.empty((groups, 8), np.uint8)
    for place in range(8):
        codes[:, place] = (words >> np.uint64(width * place)) & np.uint64((1 << width) - 1)
    return codes.reshape(-1)[:count]
