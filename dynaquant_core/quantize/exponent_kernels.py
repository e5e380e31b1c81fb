"""Compiled loops of the exponent-based quantiser: which bucket each float32 falls into.

A bucket is a sign and an exponent, the nine leading bits of a float32; zeros of both signs have one of their
own after these.  Every index is inside its table whatever the bits.  Twins in plain NumPy:
tests/reference/quantize_twins.py.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = ["BUCKETS", "ZERO", "bucket_codes", "bucket_ranges"]

#: The zeros' bucket, and the number of all buckets.
ZERO: Final = 512
BUCKETS: Final = 513

_ZERO = np.uint64(ZERO)
_SHIFT = np.uint32(23)
_MAGNITUDE = np.uint32(0x7FFFFFFF)

Array = NDArray[Any]


@kernel
def bucket_ranges(bits: Array, counts: Array, low: Array, high: Array) -> None:
    """Counts ``bits`` uint32[n] by bucket, and finds the smallest and largest magnitude in each.

    ``counts`` int64[513] is added to; ``low`` and ``high`` uint32[513] are narrowed and widened.
    """
    for i in range(np.uint64(bits.size)):
        word = bits[i]
        magnitude = word & _MAGNITUDE
        bucket = np.uint64(word >> _SHIFT) if magnitude > 0 else _ZERO
        counts[bucket] += 1
        low[bucket] = min(low[bucket], magnitude)
        high[bucket] = max(high[bucket], magnitude)


@kernel
def bucket_codes(bits: Array, table: Array, codes: Array) -> None:
    """Fills ``codes`` uint8[n] or uint16[n] from ``table`` uint16[513], by the bucket of each of ``bits``."""
    for i in range(np.uint64(bits.size)):
        word = bits[i]
        bucket = np.uint64(word >> _SHIFT) if (word & _MAGNITUDE) > 0 else _ZERO
        codes[i] = table[bucket]
