"""Run lengths and Huffman over one sequence of symbols (paper sec. 6 without the rearrangement).

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.rle_huffman import RleHuffman
    >>> values = np.zeros(5000, np.uint8); values[::500] = 3
    >>> out = np.empty_like(values)
    >>> payload = RleHuffman().encode(values)
    >>> RleHuffman().decode(payload, out)
    >>> len(payload) < 30 and bool((out == values).all())
    True
"""

from __future__ import annotations

# ruff: noqa: ARG002 - the protocol hands every codec a context
import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.codec import Array, Buffer
from dynaquant_core.coding.counts import check_output, check_symbols
from dynaquant_core.coding.runs import decode_groups, encode_groups, expected_bytes
from dynaquant_core.coding.wire import expect_size

__all__ = ["RleHuffman", "rle_huffman_bytes"]


def rle_huffman_bytes(counts: NDArray[np.int64]) -> int:
    """Predicted payload size for a memoryless sequence with these counts.

    Args:
        counts: int64[levels], or int64[contexts, levels], whose rows are then added: the codec does not
            look at the context.
    """
    return expected_bytes(np.atleast_2d(counts).sum(axis=0)[None])


class RleHuffman:
    """Runs and Huffman; a context is ignored."""

    id = 3
    name = "rle_huffman"

    def encode(self, values: Array, context: Array | None = None) -> bytes:
        """See `Codec.encode`; symbols only."""
        values = check_symbols(values, "Symbols")
        return encode_groups([values], int(values.max()) + 1) if values.size else b""

    def decode(self, payload: Buffer, out: Array, context: Array | None = None) -> None:
        """See `Codec.decode`."""
        check_output(out)
        if out.size == 0:
            expect_size(payload, 0, self.name)
            return
        decode_groups(payload, out, [out.size], self.name)
