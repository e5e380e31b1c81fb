"""Zeros of a pruned matrix, which stay zeros (ours).

On a lattice a zero would come back as noise, and the mask that a sparse training goes by, often nothing but
``weight != 0``, would be lost.  A zero is 0 steps from zero whatever its offset; of the weights of which that
is so a bit says which are zeros.  While the mask stays, that costs nothing after the first checkpoint.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding import encode_smallest
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.quantize.lattice import scattered

__all__ = ["Bits", "find_zeros", "read_zeros", "rows_with", "write_zeros", "zero_share", "zero_stream"]

#: A matrix is pruned where more than one weight in so many is zero.
RARE = 64
#: A sample of so many weights rules that out where it holds a quarter of those zeros or fewer, which chance
#: does to one pruned matrix in 10^12.  Matrices of up to so many weights are counted at once.
SAMPLE, SMALL = 1 << 12, 1 << 16

#: uint8[n / 8, rounded up]: a set bit for each zero, the first weight in a byte's highest bit.
Bits = NDArray[np.uint8]


def find_zeros(matrix: Tensor, asked: NDArray[np.bool_]) -> Bits | None:
    """Where a pruned matrix is zero; None where it is not pruned.

    Args:
        matrix: floating[rows, weights of a row], on any device.
        asked: bool[rows], which of its rows are looked at, all others aside.

    Example:
        >>> matrix = torch.eye(4)
        >>> np.unpackbits(find_zeros(matrix, np.array([True, True, True, False]))).tolist()
        [0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0]
        >>> find_zeros(matrix + 1, np.ones(4, bool)) is None
        True
    """
    rows = np.flatnonzero(asked)
    if not _may_be_pruned(matrix, rows):
        return None
    zeros = (matrix == 0).cpu().numpy()
    zeros[~asked] = False
    if np.count_nonzero(zeros) * RARE <= rows.size * matrix.shape[1]:
        return None
    return np.packbits(zeros)


def zero_share(tensor: Tensor) -> float:
    """Share of zeros in a pruned matrix; 0 of any other, and where all of it is zero.

    Example:
        >>> zero_share(torch.eye(4)), zero_share(torch.ones(4, 4)), zero_share(torch.zeros(4))
        (0.75, 0.0, 0.0)
    """
    if tensor.dim() < 2 or not tensor.numel():
        return 0.0
    matrix = tensor.detach().reshape(len(tensor), -1)
    if not _may_be_pruned(matrix, np.arange(len(matrix))):
        return 0.0
    zeros = tensor.numel() - int(matrix.count_nonzero())
    return zeros / tensor.numel() if tensor.numel() < zeros * RARE < tensor.numel() * RARE else 0.0


def rows_with(zeros: Bits, rows: int, width: int) -> NDArray[np.bool_]:
    """Which rows have a zero, bool[rows]."""
    has: NDArray[np.bool_] = _bools(zeros, rows * width).reshape(rows, width).max(1)
    return has


def write_zeros(zeros: Bits, out: Tensor) -> None:
    """Puts the zeros into a tensor with as many weights, of any floating dtype, on any device."""
    where = torch.from_numpy(_bools(zeros, out.numel()))
    out.view(-1)[where.to(out.device)] = 0


def zero_stream(name: str, own: Bits, below: Bits | None, middle: NDArray[np.bool_]) -> Stream:
    """What says where the zeros of a tensor are, against where its base has them.

    Args:
        name: of the tensor.
        own: its zeros.
        below: those of the base; None: it has none.
        middle: bool[n], which weights are 0 steps from zero.
    """
    changed = own if below is None else own ^ below
    return Stream(name, "zeros", *encode_smallest(np.packbits(_bools(changed, middle.size)[middle])))


def read_zeros(
    source: StreamSource, name: str, pruned: NDArray[np.bool_], below: Bits | None, middle: NDArray[np.bool_]
) -> Bits:
    """What `zero_stream` wrote.

    Args:
        source: of a file.
        name: of the tensor.
        pruned: bool[rows], which rows have zeros.
        below: where the base has them, of a tensor of the same shape.
        middle: bool[n], which weights are 0 steps from zero.

    Raises:
        CorruptFileError: the stream is not what `zero_stream` writes, or other rows have zeros.
    """
    places = np.flatnonzero(middle)
    stored: NDArray[Any] = np.empty(-(-places.size // 8), np.uint8)
    decode_stream(source, name, "zeros", stored)
    found = np.zeros(middle.size, np.bool_)
    found[places] = _bools(stored, places.size)
    if below is not None:
        found[places] ^= _bools(below, middle.size)[places]
    zeros = np.packbits(found)
    if not np.array_equal(rows_with(zeros, pruned.size, middle.size // pruned.size), pruned):
        raise CorruptFileError(f"tensor {name}: its zeros are not in the rows that are marked.")
    return zeros


def _bools(bits: Bits, count: int) -> NDArray[np.bool_]:
    return np.unpackbits(bits, count=count).view(np.bool_)


def _may_be_pruned(matrix: Tensor, rows: NDArray[np.int64]) -> bool:
    """Whether the zeros of some rows are worth a count; a sample says of most matrices that they are not."""
    width = matrix.shape[1]
    if rows.size * width <= SMALL:
        return rows.size > 0
    places = scattered(rows.size * width, SAMPLE).numpy()
    sample = matrix.reshape(-1)[
        torch.from_numpy(rows[places // width] * width + places % width).to(matrix.device)
    ]
    return (SAMPLE - int(sample.count_nonzero())) * 4 * RARE > SAMPLE
