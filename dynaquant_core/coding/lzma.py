"""LZMA on the array's bytes: slow to write, small for what repeats.

The payload is a bare LZMA2 stream with a dictionary of 1 MiB, so that no header can ask for
memory; a decoder produces no more than it was asked for.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.lzma import Lzma
    >>> values = np.tile(np.arange(100, dtype=np.int64), 50)
    >>> out = np.empty_like(values)
    >>> Lzma().decode(Lzma().encode(values), out)
    >>> bool((out == values).all())
    True
"""

from __future__ import annotations

# ruff: noqa: ARG002 - the protocol hands every codec a context
import lzma
from typing import Final

import numpy as np

from dynaquant_core.coding.codec import Array, Buffer
from dynaquant_core.coding.wire import as_bytes, as_view, expect_size, writable_bytes
from dynaquant_core.errors import CorruptFileError

__all__ = ["Lzma"]

#: Part of the format: a larger dictionary would not be readable.
_DICTIONARY: Final = 1 << 20
_READ: Final = [{"id": lzma.FILTER_LZMA2, "dict_size": _DICTIONARY}]
#: Preset 6 takes a fifth off presets 0 to 3 on sparse codes, 9 nothing more.
_WRITE: Final = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": _DICTIONARY}]


class Lzma:
    """General-purpose compression; any dtype; a context is ignored."""

    id = 11
    name = "lzma"

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """See `Codec.encode`."""
        return lzma.compress(as_bytes(values), lzma.FORMAT_RAW, filters=_WRITE) if values.size else b""

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """See `Codec.decode`."""
        target = writable_bytes(out)
        if out.size == 0:
            expect_size(payload, 0, self.name)
            return
        target[:] = np.frombuffer(
            expect_size(_decompress(payload, target.size), target.size, self.name), np.uint8
        )


def _decompress(payload: Buffer, size: int) -> bytes:
    """At most one byte more than ``size``; raises CorruptFileError for what is no stream of ours."""
    reader = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_READ)
    try:
        raw = reader.decompress(bytes(as_view(payload)), max_length=size + 1)
    except lzma.LZMAError as error:
        raise CorruptFileError(f"An lzma stream is damaged ({error}); load another checkpoint.") from error
    if len(raw) == size and (not reader.eof or reader.unused_data):
        raise CorruptFileError("An lzma stream does not end where its content does; load another checkpoint.")
    return raw
