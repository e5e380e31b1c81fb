"""Small things every payload is made of: variable-length numbers, and refusals in one voice.

A number is written in groups of seven bits, lowest first; the high bit says that another group follows.

Example:
    >>> from dynaquant_core.coding.wire import Reader, number
    >>> Reader(number(300), "test").number(limit=1000)
    300
"""

from __future__ import annotations

from typing import cast

import numpy as np

from dynaquant_core.coding.codec import Array, Buffer
from dynaquant_core.coding.counts import is_symbols
from dynaquant_core.errors import CorruptFileError, LimitError, TruncatedError

__all__ = ["Reader", "as_bytes", "as_view", "expect_context", "expect_size", "number", "writable_bytes"]

_ADVICE = "the stream is damaged: load another checkpoint"


def number(value: int) -> bytes:
    """Writes a number from 0 on."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def as_bytes(values: Array) -> memoryview:
    """The bytes of a contiguous array, without a copy."""
    return memoryview(np.ascontiguousarray(values).view(np.uint8).data)


def as_view(payload: Buffer) -> memoryview:
    """The payload as bytes, without a copy."""
    return memoryview(cast("bytes", payload)).cast("B")


def writable_bytes(out: Array) -> Array:
    """``out`` (1-D, contiguous) seen as uint8[n * itemsize].

    Raises:
        ValueError: it is not 1-D and contiguous, so a decoder cannot fill it in place.
    """
    if out.ndim != 1 or not out.flags.c_contiguous:
        raise ValueError(f"Decoding needs a flat contiguous array, found shape {out.shape}.")
    return out.view(np.uint8)


def expect_size(payload: Buffer, size: int, codec: str) -> memoryview:
    """The payload as a view, if it has exactly ``size`` bytes.

    Raises:
        TruncatedError: it is shorter.
        CorruptFileError: it is longer.
    """
    view = as_view(payload)
    if view.nbytes != size:
        error = TruncatedError if view.nbytes < size else CorruptFileError
        raise error(f"A {codec} stream has {view.nbytes} bytes, expected {size}; {_ADVICE}.")
    return view


def expect_context(context: Array | None, n: int, codec: str) -> Array:
    """The context symbols that a stream was written against.

    Raises:
        CorruptFileError: there are none, or not n symbols below 1024: the stream continues a base which the
            reader does not hold.
    """
    if context is None or context.size != n or not is_symbols(context):
        found = "none" if context is None else f"{context.dtype}[{context.size}]"
        raise CorruptFileError(f"A {codec} stream needs the {n} codes of its base, found {found}; {_ADVICE}.")
    return np.ascontiguousarray(context)


class Reader:
    """Reads a payload from front to back and never beyond its end.

    Args:
        payload: the bytes.
        codec: named in errors.
    """

    def __init__(self, payload: Buffer, codec: str) -> None:
        self.view = as_view(payload)
        self.codec = codec
        self.position = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return self.view.nbytes - self.position

    def take(self, size: int) -> memoryview:
        """The next ``size`` bytes.

        Raises:
            TruncatedError: there are fewer.
        """
        if size > self.left:
            raise TruncatedError(
                f"A {self.codec} stream ends {size - self.left} bytes early at byte {self.view.nbytes}; "
                f"{_ADVICE}."
            )
        self.position += size
        return self.view[self.position - size : self.position]

    def number(self, limit: int) -> int:
        """The next variable-length number.

        Raises:
            LimitError: it is above ``limit``.
            TruncatedError: the payload ends inside it.
        """
        value = shift = 0
        while shift < 63:
            group = self.take(1)[0]
            value |= (group & 0x7F) << shift
            if group < 0x80:
                break
            shift += 7
        if value > limit or shift >= 63:
            raise LimitError(
                f"A {self.codec} stream announces {value} at byte {self.position}, at most {limit} "
                f"are possible; {_ADVICE}."
            )
        return value

    def finish(self) -> None:
        """Refuses bytes that nothing announced.

        Raises:
            CorruptFileError: some are left.
        """
        if self.left:
            raise CorruptFileError(f"A {self.codec} stream has {self.left} bytes too many; {_ADVICE}.")
