"""Limits of the format: what is refused before anything is allocated (docs/FORMAT.md, "Limits").

They are far above what training states need and far below what would hurt a reader.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "MAX_DIMENSIONS",
    "MAX_INDEX_BYTES",
    "MAX_INDEX_NODES",
    "MAX_INT_DIGITS",
    "MAX_META_BITS",
    "MAX_STREAMS",
    "MAX_TENSORS",
    "MAX_TENSOR_BYTES",
]

#: Bytes of the index, decompressed.  A tensor takes about 60 there.
MAX_INDEX_BYTES: Final = 1 << 26

#: Commas and opening brackets of the index, an upper bound of the objects that parsing it makes.
MAX_INDEX_NODES: Final = 1 << 22

#: Digits of a number in the index.
MAX_INT_DIGITS: Final = 24

#: Bits of a whole number in ``meta``, where any may stand as text: a float holds its size, and it prints.
MAX_META_BITS: Final = 1023

MAX_TENSORS: Final = 1 << 20
MAX_STREAMS: Final = 1 << 21
MAX_DIMENSIONS: Final = 64

#: Bytes of one tensor, decoded (16 TiB).
MAX_TENSOR_BYTES: Final = 1 << 44
