"""Huffman tables that outlive a checkpoint: LC-Checkpoint's cache, one table per number of buckets.

Buckets are numbered by descending count, so the table of an earlier change with as many buckets fits a later
one well.  A reader gathers tables along the chain and holds, for each tensor, what its writer held.  (The
paper, arXiv 2009.13003, has one cache; with one a tensor, each can be read alone.)

Payload: how many tables, then for each its number of codes and their lengths, as `coding.tables` writes them.

Example:
    >>> tables = {3: np.uint8([1, 2, 2])}
    >>> read_tables(write_tables(tables))[3].tolist()
    [1, 2, 2]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.codec import Buffer
from dynaquant_core.coding.prefix import code_lengths, decoding_table
from dynaquant_core.coding.tables import TableReader, TableWriter
from dynaquant_core.errors import CorruptFileError

__all__ = ["Lengths", "Tables", "read_tables", "table_for", "write_tables"]

#: Code lengths, uint8[k], none of them 0.
Lengths = NDArray[np.uint8]

#: k -> the table for k buckets.
Tables = Mapping[int, Lengths]

_BITS: Final = 10
#: A held table is used where it takes at most this share more than a new one, whose own bytes count.
_SLACK: Final = 0.01


def table_for(counts: NDArray[np.int64], held: Tables) -> Lengths:
    """The table to code a change with: the held one, or a new one where that is clearly smaller.

    Args:
        counts: how many values each bucket holds, int64[k], none of them 0, descending.
        held: by the base.

    Example:
        >>> counts = np.array([6, 2, 1])
        >>> first = table_for(counts, {})
        >>> first.tolist(), table_for(counts + 1, {3: first}) is first
        ([1, 2, 2], True)
    """
    fresh, known = code_lengths(counts), held.get(counts.size)
    if known is None:
        return fresh
    worth = int(counts @ fresh) + 8 * len(write_tables({counts.size: fresh}))
    return known if int(counts @ known) <= (1 + _SLACK) * worth else fresh


def write_tables(tables: Tables) -> bytes:
    """The payload of some tables, each of at most 1024 codes."""
    writer = TableWriter()
    writer.number(len(tables), bits=_BITS)
    for size, lengths in tables.items():
        writer.number(size - 1, bits=_BITS)
        writer.lengths(lengths)
    return writer.finish()


def read_tables(payload: Buffer) -> dict[int, Lengths]:
    """What `write_tables` wrote.

    Raises:
        CorruptFileError: the payload ends before its tables do, or one is not a code for all of its buckets.
    """
    reader, tables = TableReader(payload, "tables"), {}
    for _ in range(reader.number(bits=_BITS)):
        size = reader.number(bits=_BITS) + 1
        lengths = reader.lengths(size)
        decoding_table(lengths)
        if not lengths.all():
            raise CorruptFileError(
                f"A table for {size} buckets has no code for some; load another checkpoint."
            )
        tables[size] = lengths
    return tables
