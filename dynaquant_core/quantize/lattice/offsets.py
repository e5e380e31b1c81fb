"""Offsets: by how much the lattice is shifted at each weight; both ends know, nothing is stored (ours).

A counter-based generator in integers: an offset follows from a key and its index alone, so that any part of a
tensor can be coded by any thread on any device, with the same bits.  Four consecutive indices share a 64-bit
word, SplitMix64's finaliser of key + (block + 1) * golden; each takes 16 of its bits.  An offset is one of
65536 values, evenly spaced and symmetric about 0, exact in float32, and never an end point of (-.5, .5).
"""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from dynaquant_core.errors import ConfigError
from dynaquant_core.quantize.lattice import offset_kernels as kernels
from dynaquant_core.threads import map_threads, slices

__all__ = ["LAST_EPOCH", "as_key", "key_from", "offset_key", "offsets", "scratch"]

#: Epochs count from 0 to this.
LAST_EPOCH = 2**32 - 1

#: What the word of one block of indices and that of the next are apart, before they are mixed.
GOLDEN = 0x9E3779B97F4A7C15

#: Offsets that are made at a time (their words lie in the nearest cache), and that make a thread worth it.
TILE, SLICE = 1024, 1 << 16


def offset_key(epoch: int, name: str) -> int:
    """Key of a tensor's offsets: xxh3_64 of its name in UTF-8, seeded with the epoch of the lattice.

    Args:
        epoch: 0 to 2^32 - 1; a new one is a new draw of all offsets.
        name: the tensor's name in the store.

    Returns:
        0 to 2^64 - 1.

    Raises:
        ConfigError: the epoch is out of range.

    Example:
        >>> hex(offset_key(0, "head.weight"))
        '0xd0953444038021b7'
    """
    if not 0 <= epoch <= LAST_EPOCH:
        raise ConfigError(f"lattice: the epoch must be 0 to {LAST_EPOCH}, found {epoch}.")
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"), seed=epoch)


def key_from(key: int, start: int) -> int:
    """The key whose offsets are those of another from an index on, a multiple of 4.

    Example:
        >>> offsets(key_from(7, 8), 3).tolist() == offsets(7, 3, start=8).tolist()
        True
    """
    return (key + start // 4 * GOLDEN) % 2**64


def offsets(key: int, count: int, start: int = 0) -> NDArray[np.float32]:
    """The offsets of ``count`` consecutive indices.

    Args:
        key: of `offset_key`.
        count: how many.
        start: index of the first.

    Returns:
        float32[count], in (-.5, .5).  The same for an index whatever the range it is asked for in.

    Raises:
        ConfigError: key, count or start is out of range.

    Example:
        >>> offsets(7, 3, start=2).tolist() == offsets(7, 5).tolist()[2:]
        True
    """
    number = as_key(key)
    if count < 0 or not 0 <= start <= 2**63 - count:
        raise ConfigError(f"lattice: offsets {start} to {start + count} do not exist, expected 0 to 2^63.")
    out = np.empty(count, dtype=np.float32)

    def work(part: slice) -> None:
        words, halves = scratch()
        kernels.fill_offsets(number, np.uint64(start + part.start), words, halves, out[part])

    map_threads(work, slices(count, SLICE))
    return out


def as_key(key: int) -> np.uint64:
    """A key as the kernels take it; raises ConfigError unless it is one."""
    if not 0 <= key < 2**64:
        raise ConfigError(f"lattice: a key must be 0 to 2^64 - 1, found {key}; make it with offset_key.")
    return np.uint64(key)


def scratch() -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
    """(words, the same memory as 16-bit numbers, the lowest first) for the kernels to work in."""
    words = np.empty(TILE // 4 + 1, dtype=np.uint64)
    return words, words.view(np.uint16)
