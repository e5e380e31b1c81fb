"""The protocol that every codec follows.

A codec turns a flat array into bytes and back, exactly.  It may be given a *context*: an array of the same
length that encoder and decoder both hold (the base checkpoint's codes, or its raw values), which it can
condition on or subtract.  Ids are written into files: they are never reused or given another meaning.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_LEVELS", "Array", "Buffer", "Codec", "CountedCodec"]

#: Largest alphabet of a symbol codec.
MAX_LEVELS = 1024

Array = NDArray[Any]
Buffer = bytes | bytearray | memoryview | NDArray[np.uint8]


@runtime_checkable
class Codec(Protocol):
    """Lossless coding of one flat array.

    Attributes:
        id: 0 to 255, recorded beside each stream; never reused.
        name: what `dynaquant show` prints.

    A *symbol* codec takes uint8[n] or uint16[n] with every value below `MAX_LEVELS`; a *value* codec takes
    any dtype and works on its bytes.
    """

    id: int
    name: str

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """Encodes a C-contiguous 1-D array.

        Args:
            values: the symbols or values, shape [n].
            context: None, or an array of shape [n] that the decoder will also be given.

        Returns:
            A payload that `decode` turns back into exactly ``values``, given the same context.

        Raises:
            ValueError: the array does not fit this codec (dtype, number of levels, context missing).
        """
        ...

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """Decodes into ``out`` (1-D, C-contiguous, of the original dtype and length).

        Args:
            payload: what `encode` returned; hostile bytes are refused, never trusted.
            out: where the values go, shape [n].
            context: the same array that `encode` was given, or None.

        Raises:
            CorruptFileError: the payload is not one that `encode` writes for such an array; ``out`` may then
                hold anything, but no memory outside it was touched.
        """
        ...


@runtime_checkable
class CountedCodec(Codec, Protocol):
    """A symbol codec whose tables come from counts, which its caller may have already."""

    def encode_counted(self, values: Array, context: Array | None, joint: NDArray[np.int64]) -> bytes:
        """As `encode`, without counting.

        Args:
            values: checked symbols, shape [n].
            context: as for `encode`, checked.
            joint: how often each symbol follows each context symbol, int64[contexts, levels].
        """
        ...
