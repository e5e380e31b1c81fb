"""The shared streams of a checkpoint: how each tensor is held, and all codebooks.

* ``layout``: two columns of n + 1 bytes end to end, one row a tensor in order after a first row for the
  checkpoint: book and bins;
* ``centres``: float32, the shared codebook first, then own ones, end to end.

The first row's book is the codebook scope (``t``: tensor, ``g``: global) and its bins are the shared
codebook's.  Codes and protected weights are streams of their tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding import encode_smallest
from dynaquant_core.config import MAX_BINS
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.dynaquant.held import Scope
from dynaquant_core.methods.streams import decode_stream

__all__ = ["CODED", "Layout", "Row", "read_array", "write_array"]

#: Letter of each way to hold a tensor: own centres, the base's, shared ones, bfloat16, exact.
BOOKS = "obshe"
#: Those of tensors held as codes.
CODED = "obs"
SCOPES: dict[str, Scope] = {"t": "tensor", "g": "global"}


@dataclass(frozen=True, slots=True)
class Row:
    """How one tensor is held: the letter of its book, and its bins."""

    book: str
    bins: int = 0


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

    def stream(self) -> Stream:
        """The layout as a stream."""
        rows = [Row(self.scope[0], self.shared_bins), *self.rows]
        columns = (
            np.array([ord(row.book) for row in rows], dtype=np.uint8),
            np.array([row.bins for row in rows], dtype=np.uint8),
        )
        return Stream("", "layout", *encode_smallest(np.concatenate(columns), None, ("raw", "zstd")))

    @classmethod
    def read(cls, source: StreamSource) -> Layout:
        """Reads a source's layout; raises CorruptFileError where it does not fit the source's tensors."""
        count = len(source.specs) + 1
        packed = np.empty(2 * count, dtype=np.uint8)
        decode_stream(source, "", "layout", packed)
        books, bins = packed[:count].tobytes().decode("latin-1"), packed[count:].tolist()
        if books[0] not in SCOPES or max(bins) > MAX_BINS or set(books[1:]) - set(BOOKS):
            raise CorruptFileError(f"layout stream: books {books[:20]!r} or bins {max(bins)} are not valid.")
        rows = [Row(*columns) for columns in zip(books[1:], bins[1:], strict=True)]
        return cls(rows, bins[0], SCOPES[books[0]])


def write_array(kind: str, values: NDArray[Any], candidates: Sequence[str]) -> Stream:
    """A shared stream holding a flat array, by the smallest of the named codecs."""
    return Stream("", kind, *encode_smallest(values, None, candidates))


def read_array(source: StreamSource, kind: str, count: int, dtype: Any) -> NDArray[Any]:
    """Reads a shared stream of ``count`` values; a missing stream of none reads as an empty array."""
    out = np.empty(count, dtype=dtype)
    if count:
        decode_stream(source, "", kind, out)
    return out
