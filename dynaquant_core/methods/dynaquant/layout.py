"""The shared streams of a checkpoint: how each tensor is held, all codebooks, all protected weights.

Three streams serve all tensors, so that a tensor costs one stream ("codes") of its own:

* ``layout``: three columns of n + 1 rows end to end, one row a tensor in order after a first row for the
  checkpoint: book (uint8), bins (uint8), protected weights (uint64, little-endian);
* ``centres``: float32, the shared codebook first, then own ones, end to end;
* ``protected``: bfloat16 patterns of all tensors' protected weights, end to end.

The first row's book is the codebook scope (``t``: tensor, ``g``: global) and its bins are the shared
codebook's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding import codec_by_id, encode_smallest
from dynaquant_core.config import MAX_BINS
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.dynaquant.held import Scope

__all__ = ["Layout", "Row", "read_array", "write_array"]

#: Letter of each way to hold a tensor: own centres, the base's, shared ones, bfloat16, exact.
BOOKS = "obshe"
SCOPES: dict[str, Scope] = {"t": "tensor", "g": "global"}

#: Bytes of one row over the three columns.
ROW_BYTES = 10


@dataclass(frozen=True, slots=True)
class Row:
    """How one tensor is held: the letter of its book, its bins and its number of protected weights."""

    book: str
    bins: int = 0
    protected: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """How all tensors are held, in order.

    Args:
        rows: one per tensor.
        shared_bins: size of the shared codebook (0: none).
        scope: the codebook scope of the chain.
    """

    rows: Sequence[Row]
    shared_bins: int
    scope: Scope

    @property
    def centre_count(self) -> int:
        """Length of the ``centres`` stream."""
        return self.shared_bins + sum(row.bins for row in self.rows if row.book == "o")

    @property
    def protected_count(self) -> int:
        """Length of the ``protected`` stream."""
        return sum(row.protected for row in self.rows)

    def stream(self) -> Stream:
        """The layout as a stream."""
        rows = [Row(self.scope[0], self.shared_bins), *self.rows]
        columns = (
            np.array([ord(row.book) for row in rows], dtype=np.uint8),
            np.array([row.bins for row in rows], dtype=np.uint8),
            np.array([row.protected for row in rows], dtype="<u8").view(np.uint8),
        )
        return Stream("", "layout", *encode_smallest(np.concatenate(columns), None, ("raw", "zstd")))

    @classmethod
    def read(cls, source: StreamSource) -> Layout:
        """Reads a source's layout; raises CorruptFileError where it does not fit the source's tensors."""
        sizes = [spec.numel for spec in source.specs.values()]
        count = len(sizes) + 1
        packed = np.empty(ROW_BYTES * count, dtype=np.uint8)
        codec, payload = source.get("", "layout")
        codec_by_id(codec).decode(payload, packed)
        books = packed[:count].tobytes().decode("latin-1")
        bins = packed[count : 2 * count].tolist()
        protected = packed[2 * count :].view("<u8").tolist()
        if books[0] not in SCOPES or max(bins) > MAX_BINS:
            raise CorruptFileError(f"layout stream: scope {books[0]!r} or bins {max(bins)} is not valid.")
        rows = [Row(*columns) for columns in zip(books[1:], bins[1:], protected[1:], strict=True)]
        for index, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            if row.book not in BOOKS or row.protected > size:
                raise CorruptFileError(f"layout stream: tensor {index} of {size} elements cannot be {row}.")
        return cls(rows, bins[0], SCOPES[books[0]])


def write_array(kind: str, values: NDArray[Any], candidates: Sequence[str]) -> Stream:
    """A shared stream holding a flat array, by the smallest of the named codecs."""
    return Stream("", kind, *encode_smallest(values, None, candidates))


def read_array(source: StreamSource, kind: str, count: int, dtype: Any) -> NDArray[Any]:
    """Reads a shared stream of ``count`` values; a missing stream of none reads as an empty array."""
    out = np.empty(count, dtype=dtype)
    if count:
        codec, payload = source.get("", kind)
        codec_by_id(codec).decode(payload, out)
    return out
