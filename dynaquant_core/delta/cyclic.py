"""Cyclic delta of codes: D = (previous - current) mod B (paper sec. 6).

B is the larger number of levels of the two checkpoints, "pruned" and "protected" counted as levels, so codes
may come from codebooks of different size.  The same operation undoes itself: C = (previous - D) mod B.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.delta.cyclic import cyclic_delta, undo_cyclic_delta
    >>> before, now = np.uint8([0, 3, 5]), np.uint8([1, 3, 4])
    >>> delta = cyclic_delta(before, now, levels=6)
    >>> delta.tolist(), undo_cyclic_delta(before, delta, levels=6).tolist()
    ([5, 0, 1], [1, 3, 4])
"""

from __future__ import annotations

import numpy as np

from dynaquant_core.coding.codec import MAX_LEVELS, Array
from dynaquant_core.delta.kernels import subtract

__all__ = ["cyclic_delta", "undo_cyclic_delta"]


def _difference(previous: Array, other: Array, levels: int) -> Array:
    if previous.shape != other.shape or not 1 <= levels <= MAX_LEVELS:
        raise ValueError(
            f"Cannot take {list(other.shape)} from {list(previous.shape)} modulo {levels} levels."
        )
    largest = max(int(previous.max(initial=0)), int(other.max(initial=0)))
    if largest >= levels:
        raise ValueError(f"Code {largest} is not below the {levels} levels of a cyclic delta.")
    out = np.empty(previous.shape, np.uint8 if levels <= 256 else np.uint16)
    subtract(previous, other, levels, out)
    return out


def cyclic_delta(previous: Array, current: Array, *, levels: int) -> Array:
    """(previous - current) mod levels.

    Args:
        previous: uint8 or uint16[n], codes of the base.
        current: uint8 or uint16[n], codes of the checkpoint.
        levels: B, from 1 to 1024, above every code.

    Returns:
        uint8[n], or uint16[n] where there are more than 256 levels; 0 where nothing changed.

    Raises:
        ValueError: the lengths differ, or a code is not below ``levels``.
    """
    return _difference(previous, current, levels)


def undo_cyclic_delta(previous: Array, delta: Array, *, levels: int) -> Array:
    """The codes whose `cyclic_delta` against ``previous`` is ``delta``; arguments and errors alike."""
    return _difference(previous, delta, levels)
