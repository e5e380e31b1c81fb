"""Lossless coding of numbers by byte planes: all first bytes, all second bytes and so on, each on its own.

The sign and exponent bytes of weights repeat; the low mantissa bytes are noise that is stored as it is.
XOR with the base first turns what did not move into zeros.  Source: byte planes as in FPZIP's and ZipNN's
line of work; the layout is ours.

Payload: stored size of each plane, then the planes; one of full size is raw, any other a zstd frame.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.planes import Planes
    >>> values = np.linspace(1.0, 1.5, 4096, dtype=np.float32)
    >>> out = np.empty_like(values)
    >>> payload = Planes().encode(values)
    >>> Planes().decode(payload, out)
    >>> len(payload) < values.nbytes / 1.5 and bool((out == values).all())
    True
"""

from __future__ import annotations

# ruff: noqa: ARG002 - the protocol hands every codec a context
import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.codec import Array, Buffer
from dynaquant_core.coding.wire import Reader, as_bytes, number, writable_bytes
from dynaquant_core.coding.zstd import compress, decompress_into
from dynaquant_core.errors import CorruptFileError

__all__ = ["Planes", "PlanesXor"]

Bytes = NDArray[np.uint8]


def _encode(data: Bytes, width: int) -> bytes:
    """Encodes uint8[n * width]."""
    planes = []
    for plane in range(width):
        raw = np.ascontiguousarray(data[plane::width])
        packed = compress(raw.data)
        planes.append(packed if len(packed) < raw.size else raw.tobytes())
    return b"".join([*(number(len(plane)) for plane in planes), *planes])


def _decode(payload: Buffer, out: Bytes, width: int, codec: str) -> None:
    """Decodes into uint8[n * width]."""
    reader = Reader(payload, codec)
    n = out.size // width
    sizes = [reader.number(limit=n) for _ in range(width)]
    buffer = np.empty(n, np.uint8)
    for plane, size in enumerate(sizes):
        data = reader.take(size)
        if size == n:
            buffer[:] = np.frombuffer(data, np.uint8)
        else:
            decompress_into(data, buffer, codec)
        out[plane::width] = buffer
    reader.finish()


class Planes:
    """Byte planes under zstd; any dtype; a context is ignored."""

    id = 6
    name = "planes"

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """See `Codec.encode`."""
        return _encode(np.frombuffer(as_bytes(values), np.uint8), values.itemsize)

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """See `Codec.decode`."""
        _decode(payload, writable_bytes(out), out.itemsize, self.name)


class PlanesXor:
    """Byte planes of the values XOR the context, which has the same dtype."""

    id = 7
    name = "planes_xor"

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """See `Codec.encode`.

        Raises:
            ValueError: there is no context of the same dtype and length.
        """
        if context is None or context.dtype != values.dtype or context.size != values.size:
            raise ValueError("Codec planes_xor needs a context of the values' dtype and length.")
        mixed = np.frombuffer(as_bytes(values), np.uint8) ^ np.frombuffer(as_bytes(context), np.uint8)
        return _encode(mixed, values.itemsize)

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """See `Codec.decode`."""
        if context is None or context.dtype != out.dtype or context.size != out.size:
            raise CorruptFileError(
                f"A planes_xor stream of {out.size} {out.dtype} values has no base of that size and dtype; "
                "load another checkpoint."
            )
        target = writable_bytes(out)
        _decode(payload, target, out.itemsize, self.name)
        target ^= np.frombuffer(as_bytes(context), np.uint8)
