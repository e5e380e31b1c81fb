"""Places of a sparse matrix in CSR form: how many in each row, and how far it is from each to the next.

Example:
    >>> counts, gaps = csr(np.array([0, 3, 4, 9]), rows=2, columns=5)
    >>> counts.tolist(), gaps.tolist(), places(counts, gaps, columns=5).tolist()
    ([3, 1], [0, 2, 0, 4], [0, 3, 4, 9])
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.errors import CorruptFileError

__all__ = ["csr", "index_dtype", "places"]

Indices = NDArray[Any]


def index_dtype(columns: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds the number of a row's entries.

    Example:
        >>> index_dtype(255), index_dtype(256)
        (dtype('uint8'), dtype('uint16'))
    """
    return np.min_scalar_type(columns)


def csr(found: NDArray[np.int64], *, rows: int, columns: int) -> tuple[Indices, Indices]:
    """Places of a matrix as counts and gaps.

    Args:
        found: places in the flattened matrix, ascending, each below rows * columns.
        rows: of the matrix.
        columns: of the matrix.

    Returns:
        Entries a row, unsigned[rows], and gaps, unsigned[n], both of `index_dtype`: columns left out before
        each entry, from the one before it in its row, or from the row's beginning.
    """
    row, column = np.divmod(found, columns)
    counts = np.bincount(row, minlength=rows)
    gaps = np.diff(column, prepend=0) - 1
    first = np.flatnonzero(np.diff(row, prepend=-1))
    gaps[first] = column[first]
    dtype = index_dtype(columns)
    return counts.astype(dtype), gaps.astype(dtype)


def places(counts: Indices, gaps: Indices, *, columns: int) -> NDArray[np.int64]:
    """Undoes `csr`: places in the flattened matrix, int64[n], ascending.

    Args:
        counts: unsigned[rows], each at most ``columns``, whose sum is the number of gaps.
        gaps: unsigned[n].
        columns: of the matrix.

    Raises:
        CorruptFileError: a gap leads out of its row.
    """
    reach = np.cumsum(gaps.astype(np.int64) + 1)
    begin = np.cumsum(counts.astype(np.int64)) - counts
    before = np.concatenate([np.zeros(1, np.int64), reach])[begin]
    column = reach - np.repeat(before, counts) - 1
    if int(column.max(initial=0)) >= columns:
        raise CorruptFileError(f"An entry lies in column {int(column.max())} of a row of {columns}.")
    found: NDArray[np.int64] = np.repeat(np.arange(counts.size) * columns, counts) + column
    return found
