"""The nearest of ascending centres; twin in tests/reference/even_twins.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = ["cells_of", "count_below"]

Array = NDArray[Any]


@kernel
def cells_of(values: Array, low: float, inverse: float, last: float, cells: Array) -> None:
    """Fills cells, int64[n] = trunc((value - low) * inverse), held within 0 and ``last``; all else float64.

    ``values`` float32[n], finite.  A larger value is never in a lower cell.
    """
    for i in range(np.uint64(values.size)):
        cells[i] = np.int64(min(max((np.float64(values[i]) - low) * inverse, 0.0), last))


@kernel
def count_below(
    values: Array, low: float, inverse: float, starts: Array, bounds: Array, codes: Array
) -> None:
    """Fills codes = how many bounds lie below each value, counting on from what its cell says.

    ``values`` float32[n]; ``low``, ``inverse`` float64, those of `cells_of`; ``starts`` uint8[cells], how
    many bounds lie in lower cells; ``bounds`` float32[k], ascending, the last infinite; ``codes`` uint8[n].
    """
    last = np.float64(starts.size) - 1.0
    one = np.uint64(1)
    for i in range(np.uint64(values.size)):
        value = values[i]
        cell = np.int64(min(max((np.float64(value) - low) * inverse, 0.0), last))
        code = np.uint64(starts[np.uint64(cell)])
        while bounds[code] < value:
            code += one
        codes[i] = np.uint8(code)
