"""Kernels of delta coding: differences modulo the number of levels, and grouping by source code."""

from __future__ import annotations

import numpy as np

from dynaquant_core.coding.codec import Array
from dynaquant_core.jit import kernel

__all__ = ["gather", "scatter", "subtract"]


@kernel
def subtract(previous: Array, other: Array, levels: int, out: Array) -> None:
    """Fills out = (previous - other) mod levels; all of them uint8 or uint16[n] below ``levels``."""
    modulus = np.int32(levels)
    for i in range(np.uint64(out.size)):
        difference = np.int32(previous[i]) - np.int32(other[i])
        out[i] = difference + modulus if difference < 0 else difference


@kernel
def scatter(values: Array, source: Array, places: Array, out: Array) -> None:
    """Moves values[i] to the next place of the group source[i]; ``places``, int64[groups], is advanced."""
    for i in range(np.uint64(values.size)):
        group = np.uint64(source[i])
        place = np.uint64(places[group])
        out[place] = values[i]
        places[group] = place + np.uint64(1)


@kernel
def gather(grouped: Array, source: Array, places: Array, out: Array) -> None:
    """Undoes `scatter`: out[i] is the next value of the group source[i]."""
    for i in range(np.uint64(out.size)):
        group = np.uint64(source[i])
        place = np.uint64(places[group])
        out[i] = grouped[place]
        places[group] = place + np.uint64(1)
