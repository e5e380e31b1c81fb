"""Writing values to their places (twin: tests/reference/samo_twins.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = ["scatter"]


@kernel
def scatter(target: NDArray[Any], index: NDArray[np.int32], values: NDArray[Any]) -> None:
    """target[index[i]] = values[i]; ``target`` and ``values`` are words of the same width, index >= 0."""
    for at in range(np.uint64(index.size)):
        target[np.uint64(index[at])] = values[at]
