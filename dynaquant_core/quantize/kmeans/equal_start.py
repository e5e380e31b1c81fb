"""K-means from an equal-population start, stopped when the L1 norm gains little (GOBO, MICRO'20).

In one dimension a cluster is a run of sorted values, so with prefix sums an iteration costs a few binary
searches a centre, exact, however many values there are; sorting them once is what takes the time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.quantize.kmeans.nearest_kernels import cells_of, count_below

__all__ = ["GAIN", "ITERATIONS", "fit_equal_start", "nearest_centres"]

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

#: Stops once an iteration lowers the L1 norm by less than this share of it (our soft stop).
GAIN = 1e-3
#: At most so many.
ITERATIONS = 1000

#: Equal cells over the centres' range that say where the search for the nearest begins.
_CELLS = 1 << 12


def fit_equal_start(
    values: Floats,
    k: int,
    *,
    gain: float = GAIN,
    iterations: int = ITERATIONS,
    go_on: Callable[[], bool] = lambda: True,
) -> Floats:
    """Clusters sorted values: each starts with as many of them, then means and nearest centres in turn.

    Args:
        values: float32[n], finite, ascending.
        k: number of clusters, at least 1.
        gain: stops at a relative gain in L1 norm below this.
        iterations: at most so many.
        go_on: asked before each iteration; False ends it.

    Returns:
        float32, ascending and distinct, each within the range of the values, the centres of the least L1 norm
        that was seen; fewer than ``k`` where values repeat or there are fewer.

    Example:
        >>> fit_equal_start(np.float32([0, 1, 2, 10, 11, 12, 13, 14]), 2).tolist()
        [1.0, 12.0]
    """
    if values.size == 0:
        return values.copy()
    sums = np.concatenate(([0.0], np.cumsum(values, dtype=np.float64)))
    edges = np.arange(k + 1, dtype=np.int64) * values.size // k
    centres = best = _means(values, sums, edges, values[edges[:-1].clip(0, values.size - 1)])
    edges = _edges(values, centres)
    least = _norm(values, sums, edges, centres)
    for _ in range(iterations):
        if not go_on():
            break
        centres = _means(values, sums, edges, centres)
        edges = _edges(values, centres)
        norm = _norm(values, sums, edges, centres)
        if norm >= least:
            break
        enough = least - norm < gain * least
        least, best = norm, centres
        if enough:
            break
    return np.unique(best)


def nearest_centres(values: Floats, centres: Floats) -> NDArray[np.uint8]:
    """Index of each value's nearest centre, the lower one on a tie.

    Args:
        values: float32[n], any order.
        centres: float32[k], ascending, k from 1 to 256.

    Returns:
        uint8[n].

    Example:
        >>> nearest_centres(np.float32([9, -1, 5]), np.float32([0, 10])).tolist()
        [1, 0, 0]
    """
    middles = _middles(centres)
    low, span = float(centres[0]), float(centres[-1]) - float(centres[0])
    inverse = _CELLS / span if span else 0.0
    cells = np.empty(middles.size, np.int64)
    cells_of(middles, low, inverse, _CELLS - 1.0, cells)
    starts = np.searchsorted(cells, np.arange(_CELLS)).astype(np.uint8)
    codes = np.empty(values.size, np.uint8)
    count_below(values, low, inverse, starts, np.append(middles, np.float32(np.inf)), codes)
    return codes


def _middles(centres: Floats) -> Floats:
    """What separates neighbours, float32[k - 1]."""
    wide = centres.astype(np.float64)
    return ((wide[1:] + wide[:-1]) / 2).astype(np.float32)


def _edges(values: Floats, centres: Floats) -> NDArray[np.int64]:
    """Where each centre's run of values begins, and the end of the last: int64[k + 1]."""
    inner = np.searchsorted(values, _middles(centres), side="right")
    return np.concatenate(([0], inner, [values.size]))


def _means(values: Floats, sums: Doubles, edges: NDArray[np.int64], before: Floats) -> Floats:
    """The mean of each run; an empty one keeps its centre.

    A difference of prefix sums may lose the digits of a run beside far larger values: what it gives is held
    within the run.
    """
    begin, end = edges[:-1], edges[1:]
    used = end > begin
    means = np.diff(sums[edges]) / np.maximum(end - begin, 1)
    held = np.clip(means, values[begin.clip(0, values.size - 1)], values[(end - 1).clip(0)])
    return np.where(used, held, before).astype(np.float32)


def _norm(values: Floats, sums: Doubles, edges: NDArray[np.int64], centres: Floats) -> float:
    """The sum of |value - its centre| over all values."""
    begin, end = edges[:-1], edges[1:]
    split = np.clip(np.searchsorted(values, centres), begin, end)
    wide = centres.astype(np.float64)
    below = wide * (split - begin) - (sums[split] - sums[begin])
    above = (sums[end] - sums[split]) - wide * (end - split)
    return float(below.sum() + above.sum())
