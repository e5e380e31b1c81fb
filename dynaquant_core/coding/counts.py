"""Counting symbols, and the checks every symbol codec makes of what it is given.

Example:
    >>> import numpy as np
    >>> from dynaquant_core.coding.counts import joint_counts
    >>> joint_counts(np.uint8([0, 1, 1]), np.uint8([1, 1, 0]))
    array([[0, 1],
           [1, 1]])
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.codec import MAX_LEVELS, Array
from dynaquant_core.coding.counts_kernels import count_pairs, count_symbols

__all__ = ["check_context", "check_output", "check_symbols", "is_symbols", "joint_counts", "symbol_counts"]

Counts = NDArray[np.int64]

#: Four tables of this many counts stay inside a core's own cache.
_IN_CACHE = 1 << 13


def is_symbols(values: Array) -> bool:
    """Whether ``values`` is what a symbol codec takes: uint8 or uint16, every value below `MAX_LEVELS`."""
    if values.dtype == np.uint8:
        return True
    return values.dtype == np.uint16 and (values.size == 0 or int(values.max()) < MAX_LEVELS)


def check_symbols(values: Array, what: str) -> Array:
    """Returns ``values``, a flat and contiguous array of symbols.

    Raises:
        ValueError: it is not 1-D, not uint8 or uint16, or holds a symbol from `MAX_LEVELS` on.
    """
    if values.ndim != 1 or not is_symbols(values):
        raise ValueError(
            f"{what} must be a flat uint8 or uint16 array of symbols below {MAX_LEVELS}, "
            f"found {values.dtype}{list(values.shape)}; use a value codec for anything else."
        )
    return np.ascontiguousarray(values)


def check_context(context: Array | None, n: int, codec: str) -> Array:
    """Returns the context that a codec cannot do without, n symbols.

    Raises:
        ValueError: it is missing, of another length, or not what `check_symbols` wants.
    """
    if context is None:
        raise ValueError(f"Codec {codec} needs the context that it conditions on.")
    if context.size != n:
        raise ValueError(f"Codec {codec} was given {context.size} context symbols for {n} values.")
    return check_symbols(context, "Context symbols")


def check_output(out: Array) -> None:
    """Refuses an array that symbols cannot be decoded into.

    Raises:
        ValueError: it is not a flat, contiguous uint8 or uint16 array.
    """
    if out.ndim != 1 or not out.flags.c_contiguous or out.dtype not in (np.uint8, np.uint16):
        raise ValueError(
            f"Symbols decode into flat uint8 or uint16 arrays, found {out.dtype}{list(out.shape)}."
        )


def symbol_counts(values: Array, step: int = 1) -> Counts:
    """How often each symbol occurs, int64[largest symbol + 1] (at least one entry).

    Args:
        values: uint8 or uint16[n], below `MAX_LEVELS`.
        step: count only every ``step``-th value; the length is that of all.

    Raises:
        ValueError: see `check_symbols`.

    Example:
        >>> import numpy as np
        >>> symbol_counts(np.uint8([2, 0, 2]))
        array([1, 0, 2])
    """
    values = check_symbols(values, "Symbols")
    parts = np.zeros((4, int(values.max(initial=0)) + 1), np.int64)
    count_symbols(values, step, parts)
    counts: Counts = parts.sum(axis=0)
    return counts


def joint_counts(values: Array, context: Array | None = None) -> Counts:
    """How often each symbol occurs after each context symbol, int64[contexts, levels].

    Args:
        values: uint8 or uint16[n], below `MAX_LEVELS`.
        context: uint8 or uint16[n], below `MAX_LEVELS`; None counts as one context for all.

    Raises:
        ValueError: see `check_symbols`, or the lengths differ.
    """
    if context is None:
        return symbol_counts(values)[None]
    values, context = check_symbols(values, "Symbols"), check_symbols(context, "Context symbols")
    if values.size != context.size:
        raise ValueError(f"Context has {context.size} symbols, the values have {values.size}.")
    if values.size == 0:
        return np.zeros((1, 1), np.int64)
    levels, rows = int(values.max()) + 1, int(context.max()) + 1
    tables = 4 if rows * levels <= _IN_CACHE else 1
    parts = np.zeros((tables, rows, levels), np.int64)
    count_pairs(values, context, levels, rows * levels if tables > 1 else 0, parts.ravel())
    counts: Counts = parts.sum(axis=0)
    return counts
