"""Inner loops of evenly spaced levels and buckets; twins in tests/reference/even_twins.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = ["assign_even", "look_up", "tally_even"]

Array = NDArray[Any]


@kernel
def assign_even(values: Array, low: float, inverse: float, last: float, codes: Array) -> None:
    """Fills codes = the level nearest to each value, by (value - low) * inverse, held within 0 and ``last``.

    ``values`` float32[n], finite; ``low``, ``inverse``, ``last`` float64, the last at most 255; ``codes``
    uint8[n].
    """
    for i in range(np.uint64(values.size)):
        place = (np.float64(values[i]) - low) * inverse
        codes[i] = np.uint8(min(max(place, 0.0), last) + 0.5)


@kernel
def look_up(codes: Array, table: Array, out: Array) -> None:
    """Fills out = table[codes]; ``codes`` uint8[n] below the table's length, ``out`` of the table's dtype."""
    for i in range(np.uint64(out.size)):
        out[i] = table[np.uint64(codes[i])]


@kernel
def tally_even(values: Array, low: float, inverse: float, count: Array, first: Array, second: Array) -> None:
    """Adds each value to one of ``count.size`` equal buckets: 1, u and u^2, u = (value - low) * inverse.

    ``values`` float32[n] with u in [0, 1]; ``low``, ``inverse`` float64; the sums float64, of one length.
    """
    buckets = np.float64(count.size)
    last = buckets - 1.0
    for i in range(np.uint64(values.size)):
        u = (np.float64(values[i]) - low) * inverse
        k = np.uint64(min(max(u * buckets, 0.0), last))
        count[k] += 1.0
        first[k] += u
        second[k] += u * u
