"""Huffman coding of symbols: one canonical code, four bit streams that decode in turn.

Payload: table section (levels, code lengths), byte lengths of the first three streams, the four streams of a
quarter of the symbols each, up to three symbols that no quarter holds, as they are.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.huffman import Huffman
    >>> values = np.repeat(np.arange(4, dtype=np.uint8), [500, 250, 125, 125])
    >>> out = np.empty_like(values)
    >>> payload = Huffman().encode(values)
    >>> Huffman().decode(payload, out)
    >>> len(payload), bool((out == values).all())
    (230, True)
"""

from __future__ import annotations

# ruff: noqa: ARG002 - the protocol hands every codec a context
import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.codec import MAX_LEVELS, Array, Buffer
from dynaquant_core.coding.counts import check_output, check_symbols, symbol_counts
from dynaquant_core.coding.prefix import as_windows, code_entries, code_lengths, decoding_table
from dynaquant_core.coding.prefix_kernels import pack, unpack
from dynaquant_core.coding.tables import TableReader, TableWriter
from dynaquant_core.coding.wire import Reader, as_bytes, expect_size, number
from dynaquant_core.errors import CorruptFileError

__all__ = ["Huffman", "decode_body", "encode_body", "huffman_bytes"]

_LEVEL_BITS = 10


def _tables(lengths: NDArray[np.uint8]) -> TableWriter:
    writer = TableWriter()
    writer.number(lengths.size - 1, bits=_LEVEL_BITS)
    writer.lengths(lengths)
    return writer


def huffman_bytes(counts: NDArray[np.int64]) -> int:
    """Predicted payload size for symbols with these counts, int64[levels]; exact to a few bytes."""
    if not counts.any():
        return 0
    lengths = code_lengths(counts)
    body = int(counts @ lengths) // 8 + 2
    return int(_tables(lengths).bits / 8) + body + 3 * len(number(body // 4)) + 1


def encode_body(values: Array, counts: NDArray[np.int64], lengths: NDArray[np.uint8]) -> bytes:
    """Symbols under a code that the reader knows.

    Args:
        values: uint8 or uint16[n], every symbol with a length above 0.
        counts: how often each symbol occurs, int64[levels].
        lengths: uint8[levels], of a complete code, as `prefix.code_lengths` gives them.

    Example:
        >>> len(encode_body(np.zeros(8, np.uint8), np.array([8, 0]), np.uint8([1, 1])))
        7
    """
    entries = code_entries(lengths)
    out = np.empty(int(counts @ lengths) // 8 + 16, np.uint8)
    quarter, edges = values.size // 4, [0]
    for stream in range(4):
        part = values[stream * quarter : (stream + 1) * quarter]
        edges.append(int(pack(part, entries, out, edges[-1])))
    sizes = b"".join(number(edges[i + 1] - edges[i]) for i in range(3))
    tail = bytes(as_bytes(values[4 * quarter :].astype(f"<u{values.itemsize}")))
    return sizes + out[: edges[4]].tobytes() + tail


def decode_body(reader: Reader, lengths: NDArray[np.uint8], out: Array) -> None:
    """Reads the rest of a payload, written by `encode_body` with the same lengths.

    Args:
        reader: at the body's beginning.
        lengths: uint8[levels].
        out: uint8 or uint16[n], filled with symbols below ``levels``.

    Raises:
        CorruptFileError: the bytes are not such a body, or the lengths no complete code.
    """
    table, longest = decoding_table(lengths)
    levels = lengths.size
    if levels > (256 if out.dtype == np.uint8 else MAX_LEVELS):
        raise CorruptFileError(
            f"A huffman stream's {levels} levels do not fit {out.dtype}; load another checkpoint."
        )
    sizes = [reader.number(limit=reader.left) for _ in range(3)]
    quarter = out.size // 4
    tail = out[4 * quarter :]
    body = reader.take(reader.left - tail.nbytes) if reader.left >= tail.nbytes else reader.take(tail.nbytes)
    tail[:] = np.frombuffer(reader.take(tail.nbytes), f"<u{out.itemsize}")
    _decode_quarters(out[: 4 * quarter], table, longest, body, sizes)
    if int(tail.max(initial=0)) >= levels:
        raise CorruptFileError("A huffman stream ends in symbols it does not have; load another checkpoint.")


def _decode_quarters(
    out: Array, table: NDArray[np.uint32], longest: int, body: memoryview, sizes: list[int]
) -> None:
    edges = np.zeros(5, np.int64)
    edges[1:4] = np.cumsum(sizes)
    edges[4] = body.nbytes
    if edges[3] > edges[4]:
        raise CorruptFileError("A huffman stream's parts are longer than the whole; load another checkpoint.")
    bits = 8 * edges[:4]
    unpack(out, table, longest, as_windows(body), bits, 8 * body.nbytes)
    if ((8 * edges[1:] - bits) // 8 != 0).any():
        raise CorruptFileError(
            "A huffman stream's parts do not end where announced; load another checkpoint."
        )


class Huffman:
    """Order-0 Huffman; a context is ignored."""

    id = 2
    name = "huffman"

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """See `Codec.encode`; symbols only."""
        values = check_symbols(values, "Symbols")
        if values.size == 0:
            return b""
        counts = symbol_counts(values)
        lengths = code_lengths(counts)
        return _tables(lengths).finish() + encode_body(values, counts, lengths)

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """See `Codec.decode`."""
        check_output(out)
        if out.size == 0:
            expect_size(payload, 0, self.name)
            return
        tables = TableReader(payload, self.name)
        levels = tables.number(bits=_LEVEL_BITS) + 1
        lengths = tables.lengths(levels)
        reader = Reader(payload, self.name)
        reader.take(tables.end)
        decode_body(reader, lengths, out)
