"""The dynamic programme's inner loop; twin in tests/reference/quantize_twins.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.jit import kernel

__all__ = ["best_splits"]

Array = NDArray[Any]


@kernel
def best_splits(
    layer: int,
    mass: Array,
    first: Array,
    second: Array,
    before: Array,
    after: Array,
    earlier: Array,
    starts: Array,
) -> int:
    """Best ways to cut points 0..i into ``layer + 1`` clusters, for every i; returns how many costs it took.

    ``after[i] = min over j of before[j - 1] + cost(j, i)`` with the cluster j..i last; ``starts[i]`` is the
    lowest such j.  The best j does not fall as i grows, nor as clusters are added (the cost has the
    quadrangle property), so the middle of a stretch is solved between its ends' answers.

    ``mass``, ``first``, ``second`` float64[n + 1] are prefix sums of w, w x and w x^2; ``before``, ``after``
    float64[n]; ``earlier``, ``starts`` int64[n], those of one cluster less and of this number.
    """
    size = mass.size - 1
    taken = 0
    step = 1
    while step < size:
        step *= 2
    while step >= 1:
        i = layer + step - 1
        while i < size:
            low, high = max(layer, earlier[i]), i
            if i - step >= layer:
                low = max(low, starts[i - step])
            if i + step < size:
                high = min(high, starts[i + step])
            low = min(low, high)
            best, where = np.inf, low
            for j in range(low, high + 1):
                moment = first[i + 1] - first[j]
                cost = before[j - 1] + (second[i + 1] - second[j]) - moment * moment / (mass[i + 1] - mass[j])
                if cost < best:
                    best, where = cost, j
            after[i] = best
            starts[i] = where
            taken += high + 1 - low
            i += 2 * step
        step //= 2
    return taken
