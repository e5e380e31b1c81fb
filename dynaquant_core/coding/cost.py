"""What a stream will cost, from counts alone: nothing is encoded.

A search compares hundreds of candidates, so their sizes must come from a histogram.  Each function makes the
codec's tables and adds up what the symbols would take under them: within 2% of the payload on streams that
are memoryless given their context, tables included.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.cost import context_bytes, entropy_bits
    >>> joint = np.diag(np.full(16, 9_000)) + np.diag(np.full(15, 500), 1)
    >>> 1.0 < context_bytes(joint) * 8 / entropy_bits(joint) < 1.01
    True
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.huffman import huffman_bytes
from dynaquant_core.coding.rans import rans_bytes
from dynaquant_core.coding.rans_model import entropy_bits
from dynaquant_core.coding.rle_huffman import rle_huffman_bytes
from dynaquant_core.coding.runs import expected_bytes

__all__ = [
    "context_bytes",
    "entropy_bits",
    "huffman_bytes",
    "order0_bytes",
    "paper_bytes",
    "rle_huffman_bytes",
]

Counts = NDArray[np.int64]


def order0_bytes(counts: Counts) -> int:
    """Payload of codec ``rans`` for symbols with these counts, int64[levels].

    Example:
        >>> import numpy as np
        >>> order0_bytes(np.array([1000, 1000]))
        256
    """
    return rans_bytes(np.atleast_2d(counts).sum(axis=0)[None])


def context_bytes(joint: Counts) -> int:
    """Payload of codec ``rans_context`` for joint counts int64[contexts, levels]."""
    return rans_bytes(joint)


def paper_bytes(joint: Counts) -> int:
    """Payload of codec ``paper`` for joint counts int64[contexts, levels]; one context: a key checkpoint.

    Row c of the joint counts, read backwards from column c, is the histogram of the cyclic deltas that have
    source code c.
    """
    rows, levels = joint.shape
    if rows == 1:
        return expected_bytes(joint)
    modulus = max(rows, levels)
    deltas = np.zeros((rows, modulus), np.int64)
    source, code = np.indices(joint.shape)
    deltas[source, (source - code) % modulus] = joint
    return expected_bytes(deltas)
