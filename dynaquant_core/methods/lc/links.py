"""The streams of one tensor's change, and what a reader holds of a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding import encode_smallest
from dynaquant_core.coding.huffman import decode_body, encode_body
from dynaquant_core.coding.wire import Reader
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.lc.tables import Tables, read_tables, table_for, write_tables
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.methods.tensorwise import expect_base
from dynaquant_core.methods.words import CODECS
from dynaquant_core.quantize.exponent import MOST_BUCKETS, Link, advanced, code_bits
from dynaquant_core.quantize.packing import pack, packed_bytes, unpack
from dynaquant_core.state import TensorSpec, empty_words, tensor_of, words_of

__all__ = ["Coded", "Tracked", "coded", "read_link", "read_tracked", "whole_streams"]

#: The codec's id of payloads that are laid out here.
RAW: Final = 0

Codes = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Tracked:
    """The paper's approximation of a tensor, which every change is taken from.

    Args:
        values: flat, in the tensor's own dtype, on the CPU.
        tables: gathered along the chain.
    """

    values: Tensor
    tables: Tables


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A change that waits to be written.

    Args:
        link: the change.
        base: what it is a change of.
        tables: what is held after it.
        huffman: whether its codes go under the table for their number, or have a fixed width.
    """

    link: Link
    base: Tracked
    tables: Tables
    huffman: bool

    def hold(self) -> Tracked:
        """What a reader has after it."""
        return Tracked(advanced(self.base.values, self.link), self.tables)

    def streams(self, name: str) -> Iterator[Stream]:
        """What `read_link` reads."""
        link, known = self.link, self.base.tables
        new = {k: table for k, table in self.tables.items() if table is not known.get(k)}
        head = bytes([link.steps.shape[0]]) + link.steps.astype("<f4").tobytes()
        yield Stream(name, "buckets", RAW, head)
        if new:
            yield Stream(name, "tables", RAW, write_tables(new))
        if link.buckets > 1 and self.huffman:
            lengths = self.tables[link.buckets]
            yield Stream(name, "codes", RAW, encode_body(link.codes, link.counts, lengths))
        elif link.buckets > 1:
            yield Stream(name, "packed", RAW, _packed(link.codes, link.buckets))


def coded(link: Link, base: Tracked, *, huffman: bool) -> Coded:
    """Settles the table of a change."""
    if not huffman or link.buckets == 1:
        return Coded(link, base, base.tables, huffman)
    table = table_for(link.counts, base.tables)
    return Coded(link, base, {**base.tables, link.buckets: table}, huffman)


def whole_streams(name: str, held: Tracked, spec: TensorSpec) -> Iterator[Stream]:
    """What a reader holds, so that it needs no base: how a chain is cut."""
    words = words_of(held.values.reshape(spec.shape))
    yield Stream(name, "whole", *encode_smallest(words, None, CODECS))
    if held.tables:
        yield Stream(name, "tables", RAW, write_tables(held.tables))


def read_tracked(source: StreamSource, name: str, spec: TensorSpec, base: Tracked | None) -> Tracked:
    """What a reader holds after the streams of `whole_streams` or of `Coded.streams`.

    Raises:
        CorruptFileError: they are neither.
        MissingBaseError: they are a change, and ``base`` is None.
    """
    if source.has(name, "whole"):
        words = empty_words(spec)
        decode_stream(source, name, "whole", words)
        return Tracked(tensor_of(words, spec).reshape(-1), _new_tables(source, name))
    held = expect_base(base, name)
    link, tables = read_link(source, name, spec.numel, held.tables)
    return Tracked(advanced(held.values, link), tables)


def read_link(source: StreamSource, name: str, size: int, held: Tables) -> tuple[Link, Tables]:
    """Reads a change of ``size`` elements, and what tables are held after it.

    Raises:
        CorruptFileError: the streams are not what `Coded.streams` writes.
    """
    steps = _read_steps(_payload(source, name, "buckets"), name)
    tables, buckets = {**held, **_new_tables(source, name)}, steps.shape[1]
    codes = np.zeros(size, np.uint8 if buckets <= 256 else np.uint16)
    if buckets > 1 and source.has(name, "packed"):
        codes = _unpacked(_payload(source, name, "packed"), size, buckets)
    elif buckets > 1:
        if buckets not in tables:
            raise CorruptFileError(
                f"The tensor {name!r} is coded under a table for {buckets} that is not held."
            )
        decode_body(Reader(_payload(source, name, "codes"), "codes"), tables[buckets], codes)
    return Link(codes, steps), tables


def _new_tables(source: StreamSource, name: str) -> Tables:
    return read_tables(_payload(source, name, "tables")) if source.has(name, "tables") else {}


def _payload(source: StreamSource, name: str, kind: str) -> memoryview:
    codec, payload = source.get(name, kind)
    if codec != RAW:
        raise CorruptFileError(f"The {kind!r} stream of {name!r} has codec id {codec}, expected {RAW}.")
    return payload


def _read_steps(payload: memoryview, name: str) -> NDArray[np.float32]:
    """float32[m, k]: a byte for m, then the numbers; k from what is there."""
    rows = payload[0] if payload.nbytes else 0
    whole = rows > 0 and payload.nbytes > 1 and (payload.nbytes - 1) % (4 * rows) == 0
    if not whole or payload.nbytes - 1 > 4 * rows * MOST_BUCKETS:
        raise CorruptFileError(f"The buckets of {name!r} have {payload.nbytes} bytes for {rows} steps.")
    steps = np.frombuffer(payload[1:], "<f4").astype(np.float32).reshape(rows, -1)
    if not np.isfinite(steps).all():
        raise CorruptFileError(f"A bucket of {name!r} stands for a number that is not finite.")
    return steps


def _packed(codes: Codes, buckets: int) -> bytes:
    """Codes in the fixed width that their number needs; of more than eight bits, the low eight first."""
    width = code_bits(buckets)
    low = pack((codes & 0xFF).astype(np.uint8), min(width, 8)).tobytes()
    return low if width <= 8 else low + pack((codes >> 8).astype(np.uint8), width - 8).tobytes()


def _unpacked(payload: memoryview, size: int, buckets: int) -> Codes:
    width = code_bits(buckets)
    data, edge = np.frombuffer(payload, np.uint8), packed_bytes(size, min(width, 8))
    if data.size != edge + packed_bytes(size, max(width - 8, 0)):
        raise CorruptFileError(f"{size} codes of {width} bits were given in {data.size} bytes.")
    codes: Codes = unpack(data[:edge], size, min(width, 8))
    if width > 8:
        codes = codes | unpack(data[edge:], size, width - 8).astype(np.uint16) << 8
    if int(codes.max(initial=0)) >= buckets:
        raise CorruptFileError(f"A code is {int(codes.max())}, there are {buckets} buckets.")
    return codes
