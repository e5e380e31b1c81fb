"""A tensor as signs of what is large in it, times the product of a value a row and a value a column (ours).

A first moment is told by its sign where it is large against the product of its magnitudes, and by 0
elsewhere.

Guarantees: an element is zero or has its value's sign.  In each row the magnitudes are the least-squares
ones, given the signs and the columns; all of them are then scaled so that the result's part along the tensor
is the tensor itself, up to the code's 5%: the error is noise, which training heals, and no movement is lost.
(Least squares alone keep three quarters of it, and training pays for the rest.  Scaling every row by itself
costs far more: a row of few kept elements becomes too large.)

What is large against the product need not hold the tensor's energy: of a tensor that *is* such a product but
for its signs, nothing is.  So elements are taken further down until those taken hold enough of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

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

__all__ = ["FEW", "MANY", "Sieve", "decode_ternary", "encode_ternary"]

#: Rows that keep nothing else keep what is above this share of their largest.
LARGEST_SHARE: Final = 0.9

#: Elements of a large tensor that are tried with several bars; all are with the one that does for these.
SAMPLE: Final = 1 << 18


class Sieve(NamedTuple):
    """Which elements keep a sign.

    Args:
        bar: an element is kept where it is above this many times the product of its row and column.
        gain: all rows are scaled by this at most, or the bar is lowered; noise is the gain less 1, in the
            tensor's energy.
    """

    bar: float
    gain: float


#: A quarter of the elements of a bell shape, and noise of half the energy.
MANY: Final = Sieve(1.5, 2.5)
#: One or two in a hundred, and noise of eight times the energy.
FEW: Final = Sieve(3.0, 16.0)
#: A bar is lowered by this much at a time, this often at most; the last bar keeps whatever is not zero.
LOWER: Final = 0.75
LOWERED: Final = 10


def encode_ternary(
    tensor: Tensor, sieve: Sieve = MANY
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.int16]]:
    """Signs of what is large in a tensor, and the magnitudes of its rows and columns.

    Args:
        tensor: finite, floating, any shape and device.
        sieve: what is large.

    Returns:
        (signs uint8[n]: 0 negative, 1 zero, 2 positive; codes and scales as of `encode_product`).

    Example:
        >>> import torch
        >>> encode_ternary(torch.tensor([[3.0, -0.1], [0.1, -3.0]]))[0].tolist()
        [2, 1, 1, 0]
    """
    values = matrix_of(tensor)
    means, columns = means_of(values)
    columns = decoded_vector(*encoded_vector(columns))
    bars = [sieve.bar * LOWER**times for times in range(LOWERED)] + [0.0]
    bars = bars[_first(values, means, columns, bars, sieve.gain) :]
    found = _sieved(values, means, columns, bars[0])
    for bar in bars[1:]:
        if found.gain <= sieve.gain:
            break
        found = min(found, _sieved(values, means, columns, bar), key=lambda kept: kept.gain)
    return found.signs.reshape(-1), *coded_pair(found.gain * found.rows, columns)


def decode_ternary(
    signs: NDArray[np.uint8], codes: NDArray[np.uint8], scales: NDArray[np.int16], out: Tensor
) -> None:
    """Fills a floating tensor with what `encode_ternary` returned; arguments as `decode_product`."""
    shape = matrix_shape(out.shape)
    rows, columns = decoded_pair(codes, scales, shape)
    found = np.empty(shape, np.float32)
    for part in row_chunks(shape):
        sign = signs.reshape(shape)[part].astype(np.float32) - np.float32(1)
        found[part] = sign * rounded(rows[part, None] * columns)
    put(found, out)


class _Sieved(NamedTuple):
    """What a bar keeps: signs less 1, magnitudes of the rows, and what scales them to the whole tensor."""

    signs: NDArray[np.uint8]
    rows: Array
    gain: float


def _first(values: Array, means: Array, columns: Array, bars: Sequence[float], gain: float) -> int:
    """Where to begin among the bars: at the first that would do for a sample of a large tensor's rows."""
    stride = values.size // SAMPLE
    if stride > 1:
        part, own = values[::stride], means[::stride]
        for place, bar in enumerate(bars):
            if _sieved(part, own, columns, bar).gain <= gain:
                return place
    return 0


def _sieved(values: Array, means: Array, columns: Array, bar: float) -> _Sieved:
    signs, rows = np.empty(values.shape, np.uint8), np.empty(values.shape[0])
    whole = along = 0.0
    for part in row_chunks(values.shape):
        wide = values[part].astype(np.float64)
        kept = _kept(wide, means[part], columns, bar)
        rows[part], shared = _fitted(wide, kept, columns)
        signs[part] = kept + 1
        whole, along = whole + float(np.square(wide).sum()), along + shared
    return _Sieved(signs, rows, whole / along if along > 0 else 1.0)


def _kept(values: Array, rows: Array, columns: Array, bar: float) -> Array:
    """Signs of what is large in some rows, else 0; float64."""
    expected = rows[:, None] * columns
    against = np.divide(np.abs(values), expected, out=np.zeros_like(values), where=expected > 0)
    least = np.minimum(bar, LARGEST_SHARE * against.max(axis=1, initial=0.0, keepdims=True))
    return np.where(against > least, np.sign(values), 0.0)


def _fitted(values: Array, kept: Array, columns: Array) -> tuple[Array, float]:
    """(least-squares magnitude of each row over the columns' values, inner product with the values)."""
    along = (kept * values * columns).sum(axis=1)
    square = (np.abs(kept) * columns * columns).sum(axis=1)
    rows = np.divide(along, square, out=np.zeros_like(along), where=square > 0)
    return rows, float((rows * along).sum())
