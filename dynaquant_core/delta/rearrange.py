"""Rearrangement by source code: values grouped by what the base holds in their place (paper sec. 6).

Values with the same source code are alike, so grouping them makes long runs.  The decoder holds the base, so
the order needs no side information.  A counting sort keeps the order inside each group.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.delta.rearrange import group_sizes, rearrange, restore_order
    >>> source, values = np.uint8([2, 0, 2, 0]), np.uint8([5, 6, 7, 8])
    >>> grouped = rearrange(values, source)
    >>> grouped.tolist(), group_sizes(source).tolist(), restore_order(grouped, source).tolist()
    ([6, 8, 5, 7], [2, 0, 2], [5, 6, 7, 8])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.codec import Array
from dynaquant_core.coding.counts import symbol_counts
from dynaquant_core.delta.kernels import gather, scatter

__all__ = ["group_sizes", "rearrange", "restore_order"]


def group_sizes(source: Array) -> NDArray[np.int64]:
    """Length of each group, int64[largest source code + 1], of uint8 or uint16[n] source codes."""
    return symbol_counts(source)


def _places(source: Array, n: int) -> NDArray[np.int64]:
    if source.size != n:
        raise ValueError(f"Cannot group {n} values by {source.size} source codes.")
    sizes = group_sizes(source)
    return np.cumsum(sizes) - sizes


def rearrange(values: Array, source: Array) -> Array:
    """The values of source code 0 in their order, then those of code 1, and so on.

    Args:
        values: any dtype[n].
        source: uint8 or uint16[n], codes of the base, below 1024.

    Raises:
        ValueError: the lengths differ.
    """
    places = _places(source, values.size)
    grouped = np.empty_like(values)
    scatter(values, source, places, grouped)
    return grouped


def restore_order(grouped: Array, source: Array) -> Array:
    """Undoes `rearrange`; arguments and errors alike."""
    places = _places(source, grouped.size)
    values = np.empty_like(grouped)
    gather(grouped, source, places, values)
    return values
