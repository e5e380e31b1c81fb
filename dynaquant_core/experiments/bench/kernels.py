"""The floor: one plain read pass over the bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = ["read_pass"]


@kernel
def read_pass(words: NDArray[np.uint32]) -> int:
    """Sum of all words modulo 2^64: nothing but the read."""
    total = np.uint64(0)
    for index in range(words.size):
        total += np.uint64(words[index])
    return int(total)
