"""Canonical prefix codes of limited length: from counts to lengths, codes and decoding tables.

Only the lengths are stored; both sides number the codes of each length in the symbols' order.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.prefix import code_lengths
    >>> code_lengths(np.array([8, 4, 2, 2, 0])).tolist()
    [1, 2, 3, 3, 0]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.prefix_kernels import limited_lengths
from dynaquant_core.errors import CorruptFileError

__all__ = ["as_windows", "code_entries", "code_lengths", "decoding_table"]

#: Longest code, and the shorter limit that keeps the table of a small alphabet inside the first-level cache.
_LONGEST, _LONGEST_SMALL, _SMALL = 15, 12, 512

Lengths = NDArray[np.uint8]


def code_lengths(counts: NDArray[np.int64]) -> Lengths:
    """Optimal code lengths of at most 15 bits (12 where at most 512 symbols occur).

    Args:
        counts: int64[symbols], fewer than 2**15 symbols occurring.

    Returns:
        uint8[symbols]; 0 where the count is 0, 1 where a single symbol occurs.

    Source: package-merge (Larmore and Hirschberg 1990).
    """
    lengths = np.zeros(counts.size, np.uint8)
    used = np.flatnonzero(counts)
    if used.size == 1:
        lengths[used] = 1
    if used.size < 2:
        return lengths
    order = used[np.argsort(counts[used], kind="stable")]
    limit = _LONGEST_SMALL if used.size <= _SMALL else _LONGEST
    found = np.zeros(used.size, np.uint8)
    merged, is_leaf = np.empty((2, 2 * used.size), np.int64), np.empty((limit, 2 * used.size), np.uint8)
    limited_lengths(counts[order].astype(np.int64), limit, merged, is_leaf, found)
    lengths[order] = found
    return lengths


def code_entries(lengths: Lengths) -> NDArray[np.uint32]:
    """For each symbol its code, first bit lowest, << 4 | its length: uint32[symbols].

    Example:
        >>> import numpy as np
        >>> [bin(entry >> 4) for entry in code_entries(np.uint8([1, 2, 2]))]
        ['0b0', '0b1', '0b11']
    """
    codes = np.zeros(lengths.size, np.uint32)
    code = 0
    for length in range(1, _LONGEST + 1):
        code <<= 1
        members = np.flatnonzero(lengths == length)
        codes[members] = code + np.arange(members.size)
        code += members.size
    reversed_codes = np.zeros(lengths.size, np.uint32)
    for bit in range(_LONGEST):
        inside = lengths > bit
        reversed_codes[inside] |= ((codes[inside] >> bit) & 1) << (
            lengths[inside].astype(np.uint32) - 1 - bit
        )
    return ((reversed_codes << 4) | lengths).astype(np.uint32)


def decoding_table(lengths: Lengths) -> tuple[NDArray[np.uint32], int]:
    """The look-up table of a code, uint32[2**longest] of symbol << 4 | length, and ``longest``.

    Raises:
        CorruptFileError: the lengths are not those of a complete prefix code: some bits would mean nothing.
    """
    longest = int(lengths.max(initial=0))
    used = np.flatnonzero(lengths)
    space = int((1 << (longest - lengths[used].astype(np.int64))).sum())
    if (
        used.size == 0
        or longest > _LONGEST
        or (space != 1 << longest and not (used.size == 1 and longest == 1))
    ):
        raise CorruptFileError(
            f"A table of {used.size} code lengths up to {longest} bits is not a complete prefix code; "
            "load another checkpoint."
        )
    if used.size == 1:
        return np.full(2, used[0] << 4 | 1, np.uint32), 1
    entries = code_entries(lengths)
    table = np.empty(1 << longest, np.uint32)
    for length in range(1, longest + 1):
        members = np.flatnonzero(lengths == length)
        places = (entries[members] >> 4)[:, None] + (np.arange(1 << (longest - length)) << length)[None]
        table[places] = ((members << 4) | length).astype(np.uint32)[:, None]
    return table, longest


def as_windows(data: memoryview) -> NDArray[np.uint64]:
    """Bytes as 64-bit words, with the padding that the kernels may read beyond the end."""
    windows = np.zeros(data.nbytes // 8 + 4, np.uint64)
    windows.view(np.uint8)[: data.nbytes] = np.frombuffer(data, np.uint8)
    return windows
