"""The stream ``layout``: how each tensor is held and which scheme codes each run.

A header of 17 bytes (epoch of new lattices and of the base's, whether there is a base, the scale), then
columns of one byte a tensor (kind, step's low and high byte, class), then one byte a run (scheme).  Factors
that values are multiplied by are a stream of their own, and so are the edges that they do not pass.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding import encode_smallest
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.lattice.contexts import CLASSES, is_scheme
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.quantize.lattice import is_step

__all__ = [
    "BF16",
    "EDGED",
    "EXACT",
    "FACTORS",
    "KEPT",
    "NEW",
    "NEW_WIDE",
    "PLAIN",
    "SHORTENED",
    "STAYING",
    "Layout",
    "Row",
]

#: How a tensor is held: on its base's lattice; on a new one in narrow or wide cells; in words.
KEPT, NEW, NEW_WIDE, BF16, EXACT = range(5)
PLAIN = (BF16, EXACT)
#: Added to the kind of a tensor on a lattice whose values are multiplied by a factor.
SHORTENED = 8
#: Added to the kind of a tensor on a lattice of which rows stay what they are (`rows`).
STAYING = 16
#: Added to the kind of a tensor on a lattice whose values do not pass an edge (`signs`).
EDGED = 32
#: Factors are stored as whole numbers, of so many parts of one.
FACTORS = 1 << 16

HEADER = struct.Struct("<IIBd")


@dataclass(frozen=True, slots=True)
class Row:
    """How one tensor is held.

    Args:
        kind: one of this module's.
        step: of a new lattice; 0 otherwise.
        group: its class within a run that it shares.
        factor: that its values are multiplied by beside the step.
        stays: some of its rows are not read off the lattice.
        edge: that its values do not pass; None: there is none.
    """

    kind: int
    step: float = 0.0
    group: int = 0
    factor: float = 1.0
    stays: bool = False
    edge: float | None = None

    @property
    def byte(self) -> int:
        """Its kind, and what is added to it."""
        return (
            self.kind + SHORTENED * (self.factor < 1) + STAYING * self.stays + EDGED * (self.edge is not None)
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """How a checkpoint holds its tensors.

    Args:
        epoch: of the lattices that are new here.
        base_epoch: the same of the base; None without one.
        scale: of the config; 0 where it has none.
        rows: one a tensor, in order.
        schemes: one a run, in order.
    """

    epoch: int
    base_epoch: int | None
    scale: float
    rows: Sequence[Row]
    schemes: Sequence[int]

    def streams(self) -> Iterator[Stream]:
        """The layout as streams."""
        header = HEADER.pack(self.epoch, self.base_epoch or 0, self.base_epoch is not None, self.scale)
        steps = np.array([row.step for row in self.rows], "<f4").view("<u2")[1::2]
        columns = (
            np.frombuffer(header, np.uint8),
            np.array([row.byte for row in self.rows], np.uint8),
            (steps & 255).astype(np.uint8),
            (steps >> 8).astype(np.uint8),
            np.array([row.group for row in self.rows], np.uint8),
            np.array(self.schemes, np.uint8),
        )
        yield Stream("", "layout", *encode_smallest(np.concatenate(columns), None, ("raw", "zstd")))
        factors = np.array([row.factor for row in self.rows if row.factor < 1]) * FACTORS
        if factors.size:
            yield Stream("", "factors", *encode_smallest(factors.astype(np.uint16), None, ("raw", "zstd")))
        edges = np.array([row.edge for row in self.rows if row.edge is not None], "<f4").view("<u2")[1::2]
        if edges.size:
            yield Stream("", "edges", *encode_smallest(edges.astype(np.uint16), None, ("raw", "zstd")))

    @classmethod
    def read(cls, source: StreamSource, runs: Sequence[tuple[str, ...]]) -> Layout:
        """Reads a source's layout; raises CorruptFileError where it does not fit the source's tensors."""
        count = len(source.specs)
        packed = np.empty(HEADER.size + 4 * count + len(runs), np.uint8)
        decode_stream(source, "", "layout", packed)
        epoch, base_epoch, based, scale = HEADER.unpack(packed[: HEADER.size].tobytes())
        columns = packed[HEADER.size : HEADER.size + 4 * count].reshape(4, count)
        rows = _edged(source, _shortened(source, _rows(columns)), columns[0] & EDGED > 0)
        schemes = packed[HEADER.size + 4 * count :].tolist()
        known = [is_scheme(scheme, len(run)) for scheme, run in zip(schemes, runs, strict=True)]
        if based > 1 or not all(known):
            raise CorruptFileError("layout stream: a flag or a scheme is not one that is written.")
        return cls(epoch, base_epoch if based else None, scale, rows, schemes)


def _rows(packed: NDArray[np.uint8]) -> list[Row]:
    kinds, low, high, groups = packed
    bits = (high.astype(np.uint32) << 24) | (low.astype(np.uint32) << 16)
    steps = bits.view(np.float32)
    stays = (kinds & STAYING > 0).tolist()
    columns = (
        (kinds & ~np.uint8(STAYING | EDGED)).tolist(),
        steps.tolist(),
        groups.tolist(),
        [1.0] * len(stays),
    )
    rows = [Row(*row) for row in zip(*columns, stays, strict=True)]
    for row, edged in zip(rows, (kinds & EDGED > 0).tolist(), strict=True):
        kind = row.kind & ~SHORTENED
        plain = kind in PLAIN and (row.stays or edged or row.kind != kind)
        good = kind <= EXACT and not plain and row.group < CLASSES
        if not good or (kind in (NEW, NEW_WIDE) and not is_step(row.step)):
            raise CorruptFileError(f"layout stream: {row} is no way to hold a tensor.")
    return rows


def _shortened(source: StreamSource, rows: Sequence[Row]) -> list[Row]:
    """Gives the rows that say so the factor of their values."""
    factors = np.empty(sum(row.kind >= SHORTENED for row in rows), np.uint16)
    if not factors.size:
        return list(rows)
    decode_stream(source, "", "factors", factors)
    if not factors.all():
        raise CorruptFileError("factors stream: values cannot be multiplied by 0.")
    left = iter((factors / FACTORS).tolist())
    return [
        replace(row, kind=row.kind - SHORTENED, factor=next(left)) if row.kind >= SHORTENED else row
        for row in rows
    ]


def _edged(source: StreamSource, rows: Sequence[Row], said: NDArray[np.bool_]) -> list[Row]:
    """Gives the rows that say so the edge of their values."""
    words = np.empty(np.count_nonzero(said), np.uint16)
    if not words.size:
        return list(rows)
    decode_stream(source, "", "edges", words)
    edges = (words.astype(np.uint32) << 16).view(np.float32)
    if not is_edge(edges).all():
        raise CorruptFileError(f"edges stream: values cannot end at one of {edges.tolist()}.")
    left = iter(edges.tolist())
    return [
        replace(row, edge=next(left)) if edged else row
        for row, edged in zip(rows, said.tolist(), strict=True)
    ]


def is_edge(edges: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which are finite, and zero or as large as a normal number: no processor takes those for others."""
    sizes = edges.view(np.uint32) & np.uint32(0x7FFFFFFF)
    found: NDArray[np.bool_] = (sizes == 0) | ((sizes >= 0x00800000) & (sizes < 0x7F800000))
    return found
