"""A matrix without negative values as a product of rows and columns, with a level an element (ours).

A second moment comes close to such a product, within 20 to 25% of each step (root mean square).  But it
forgets over 1 / (1 - beta2) steps, so what is off after a restore stays off, and training pays for it.  A
level says where an element is below half the product or above twice it: it stands for what such elements
are in the mean of their logarithms, in a GPT in training.

Elements keep their level while the moment remembers: against those of the base they take a tenth to a third
of a bit, by the share of its memory that an interval is.

Guarantees: as of a product: what was positive is positive, unless all of its row or of its column was zero.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize.factors import (
    Array,
    coded_pair,
    decoded_pair,
    decoded_vector,
    encoded_vector,
    matrix_of,
    matrix_shape,
    means_of,
    put,
    rounded,
    row_chunks,
)
from dynaquant_core.quantize.level_kernels import fit_levels

__all__ = ["LEVELS", "decode_levels", "encode_levels"]

#: How many there are.
LEVELS: Final = 3
#: What they stand for, in products; of so few bits that a product of two float32 values times one is exact.
TIMES: Final = np.array([5 / 16, 1.0, 11 / 4])
#: How often rows and columns are fitted before the last time.
TURNS: Final = 3

Codes = NDArray[np.uint8]


def encode_levels(tensor: Tensor, key: int | None = None) -> tuple[Codes, Codes, NDArray[np.int16]]:
    """Levels of a tensor without negative values, and the rows and columns under them.

    Rows are fitted with the levels, so that the mean of each is what it was, up to the code's 5% (10% where
    it is drawn).  So are columns, turn by turn: the means of what was restored hold the levels already, and
    taken for the product they would move further from it at every restore.

    Args:
        tensor: finite, floating, any shape and device, no value below zero.
        key: as of `blocks.encode`.

    Returns:
        (levels uint8[n]: 0 below half the product, 2 above twice it, 1 else; codes and scales as of
        `factors.encode_product`).

    Example:
        >>> import torch
        >>> encode_levels(torch.tensor([[1.0, 9.0], [1.0, 1.0], [1.0, 1.0]]))[0].tolist()
        [0, 1, 2, 1, 2, 1]
    """
    values = matrix_of(tensor)
    rows, columns = means_of(values)
    sums = columns * rows.sum()
    for _ in range(TURNS):
        _, rows, under = _fitted(values, rows, columns)
        columns = np.divide(sums, under, out=np.zeros_like(sums), where=under > 0)
    columns = decoded_vector(*encoded_vector(columns))
    levels, rows, _ = _fitted(values, rows, columns)
    return levels.reshape(-1), *coded_pair(rows, columns, key)


def _fitted(values: Array, rows: Array, columns: Array) -> tuple[Codes, Array, Array]:
    """Levels against a product, rows under them and these columns, and what columns' sums are to go by."""
    levels, fitted = np.empty(values.shape, np.uint8), np.empty(values.shape[0])
    under = np.zeros(values.shape[1])
    fit_levels(values, rows, columns, TIMES, levels, fitted, under)
    return levels, fitted, under


def decode_levels(levels: Codes, codes: Codes, scales: NDArray[np.int16], out: Tensor) -> None:
    """Fills a floating tensor with what `encode_levels` returned; what is positive there stays so.

    Args:
        levels: uint8[n], below `LEVELS`.
        codes: uint8[rows + columns], as `encode_levels` returned them.
        scales: int16, likewise.
        out: floating tensor of any shape and device.

    Raises:
        CorruptFileError: scales do not fit the codes.
    """
    shape = matrix_shape(out.shape)
    rows, columns = decoded_pair(codes, scales, shape)
    found = np.empty(shape, np.float32)
    for part in row_chunks(shape):
        found[part] = rounded(rows[part, None] * columns * TIMES[levels.reshape(shape)[part]])
    put(found, out)
