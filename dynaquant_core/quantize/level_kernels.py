"""The compiled loop that fits rows and columns under levels; twin in tests/reference/quantize_twins.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = ["fit_levels"]

Array = NDArray[Any]


@kernel
def fit_levels(
    values: Array,
    rows: Array,
    columns: Array,
    times: Array,
    levels: Array,
    fitted: Array,
    under: Array,
) -> None:
    """Levels of ``values`` float32[n, m] against a product, rows under them, and what columns follow from.

    ``rows`` float64[n] and ``columns`` float64[m] are the product's; ``times`` float64[3]; ``levels``
    uint8[n, m]; ``fitted`` float64[n], the rows under levels and columns, 0 where all of a row is; ``under``
    float64[m], zeroed: sums of levels times fitted rows, which go with the sums of the values.
    """
    low, one, high = times[0], times[1], times[2]
    for i in range(values.shape[0]):
        total, weight, row, least = 0.0, 0.0, rows[i], 0.5 * rows[i]
        part, into = values[i], levels[i]
        for j in range(np.uint64(part.size)):
            value, column = np.float64(part[j]), columns[j]
            above, below = value > 2 * row * column, value < least * column
            into[j] = np.uint8(1) + np.uint8(above) - np.uint8(below)
            total += value
            weight += column * (high if above else low if below else one)
        fitted[i] = total / weight if weight > 0 else 0.0
        row = fitted[i]
        for j in range(np.uint64(part.size)):
            level = into[j]
            under[j] += row * (high if level == 2 else low if level == 0 else one)
