"""How far tensors moved, element by element or row by row, and which parts of a whole model moved most.

A *row* here is a run of consecutive elements of a flattened tensor; the last one may be shorter.  Everything
is deterministic: of equal changes the one that comes first, in the order given, counts as larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize.flat import as_float32, flatten, host_view

__all__ = ["largest", "moved", "row_count", "row_norms"]

Array = NDArray[Any]
Mask = NDArray[np.bool_]

LIMIT = float(np.finfo(np.float32).max)


def moved(live: Tensor, base: Tensor) -> NDArray[np.float32]:
    """What has to be added to ``base`` to get ``live``, as float32[n] on the CPU, finite.

    The difference is taken in float32, or float64 where the tensors are, and a tensor that did not move gives
    zeros.  What does not fit float32 becomes its largest value.

    Args:
        live: floating, any shape, any device, finite.
        base: of the same dtype and number of elements, on the CPU.

    Example:
        >>> import torch
        >>> moved(torch.tensor([[1.5, 2.0]]), torch.tensor([1.0, 2.0]))
        array([0.5, 0. ], dtype=float32)
    """
    with np.errstate(over="ignore"):
        change = _floats(live) - _floats(base)
    finite: NDArray[np.float32] = np.clip(change, -LIMIT, LIMIT).astype(np.float32, copy=False)
    return finite


def _floats(tensor: Tensor) -> Array:
    flat = host_view(flatten(tensor).cpu())
    return flat if flat.dtype == np.float64 else as_float32(flat)


def row_count(elements: int, length: int) -> int:
    """Rows of ``length`` elements that cover a tensor.

    Example:
        >>> row_count(513, 256)
        3
    """
    return -(-elements // length)


def row_norms(change: NDArray[np.float32], length: int) -> NDArray[np.float64]:
    """The squared length of each row's change, float64[rows].

    Example:
        >>> row_norms(np.float32([3, 4, 1]), 2).tolist()
        [25.0, 1.0]
    """
    whole = change.size // length * length
    rows = change[:whole].reshape(-1, length)
    norms = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    rest = change[whole:].astype(np.float64)
    return np.append(norms, rest @ rest) if rest.size else norms


def largest(scores: Sequence[Array], count: int) -> list[Mask]:
    """Marks the ``count`` largest scores of all arrays together; a score of zero is never marked.

    Args:
        scores: float[n_i], not negative.
        count: from 0 on; where fewer scores are positive, all of those are marked.

    Returns:
        bool[n_i] for each array.

    Example:
        >>> [mask.tolist() for mask in largest([np.float32([1, 3, 2]), np.float32([2, 0])], 2)]
        [[False, True, True], [False, False]]
    """
    joined = np.concatenate([np.ravel(part) for part in scores]) if scores else np.zeros(0, np.float32)
    count = min(count, int(np.count_nonzero(joined)))
    if count == 0:
        return [np.zeros(part.size, np.bool_) for part in scores]
    least = np.partition(joined, joined.size - count)[joined.size - count]
    chosen = joined > least
    equal = np.flatnonzero(joined == least)
    chosen[equal[: count - int(np.count_nonzero(chosen))]] = True
    return np.split(chosen, np.cumsum([part.size for part in scores])[:-1])
