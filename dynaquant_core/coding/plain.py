"""Codecs without a model: the bytes as they are, one value for all, nothing changed.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.plain import Constant
    >>> Constant().encode(np.full(1000, 2.5, np.float16)).hex()
    '0041'
"""

from __future__ import annotations

# ruff: noqa: ARG002 - the protocol hands every codec a context
import numpy as np

from dynaquant_core.coding.codec import Array, Buffer
from dynaquant_core.coding.wire import as_bytes, expect_size, writable_bytes
from dynaquant_core.errors import CorruptFileError

__all__ = ["Constant", "Raw", "Same", "equal_bits"]


def equal_bits(values: Array, context: Array | None) -> bool:
    """Whether both hold the same bits (so that NaN equals itself and -0.0 differs from 0.0)."""
    if context is None or context.dtype != values.dtype or context.size != values.size:
        return False
    mine, theirs = as_bytes(values), as_bytes(context)
    first = slice(0, 1 << 12)  # what differs, mostly differs early
    return np.array_equal(mine[first], theirs[first]) and np.array_equal(mine, theirs)


class Raw:
    """The array's own bytes, little-endian; always fits."""

    id = 0
    name = "raw"

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """See `Codec.encode`; any dtype."""
        return bytes(as_bytes(values))

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """See `Codec.decode`."""
        target = writable_bytes(out)
        target[:] = np.frombuffer(expect_size(payload, target.size, self.name), np.uint8)


class Constant:
    """One value, bit for bit, for a whole array."""

    id = 9
    name = "constant"

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """See `Codec.encode`; any dtype.

        Raises:
            ValueError: the values are not all the same bits.
        """
        rows = np.frombuffer(as_bytes(values), np.uint8).reshape(values.size, values.itemsize)
        if values.size and (rows != rows[0]).any():
            raise ValueError("Codec constant needs an array of one value.")
        return rows[0].tobytes() if values.size else b""

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """See `Codec.decode`."""
        target = writable_bytes(out)
        size = out.itemsize if out.size else 0
        value = np.frombuffer(expect_size(payload, size, self.name), np.uint8)
        target.reshape(out.size, out.itemsize)[:] = value if out.size else 0


class Same:
    """The context itself: no bytes at all."""

    id = 8
    name = "same"

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """See `Codec.encode`; any dtype.

        Raises:
            ValueError: there is no context of the same dtype and bits.
        """
        if not equal_bits(values, context):
            raise ValueError("Codec same needs a context that equals the values.")
        return b""

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """See `Codec.decode`."""
        expect_size(payload, 0, self.name)
        if context is None or context.size != out.size or context.dtype != out.dtype:
            raise CorruptFileError(
                "A stream says that nothing changed, but there is no base of its size and dtype; "
                "load another checkpoint."
            )
        out[:] = context
