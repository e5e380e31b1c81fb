"""Plain NumPy twins of the kernels of `dynaquant_core.memory.samo`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def scatter(target: NDArray[Any], index: NDArray[np.int32], values: NDArray[Any]) -> None:
    target[index] = values
