"""A matrix as the product of a value a row and a value a column, and ternary signs on top of it (ours).

Second moments come close to such a product (Adafactor, arXiv 1804.04235): v_ij ~ mean of row i times mean of
column j, over the mean of all.  A first moment is told by its sign where it is large against the product of
its magnitudes, and by 0 elsewhere.  The values are kept in the 8-bit code of `blocks`, so rows + columns
bytes serve rows x columns elements.

Guarantees: an element of a product is positive unless all of its row or of its column was zero, and then it
is zero.  A ternary element is zero or has its value's sign.  In each row the magnitudes are the least-squares
ones, given the signs and the columns; all of them are then scaled so that the result's part along the tensor
is the tensor itself, up to the code's 5%: the error is noise, which training heals, and no movement is lost.
(Least squares alone keep three quarters of it, and training pays for the rest.  Scaling every row by itself
costs far more: a row of few kept elements becomes too large.)

What is large against the product need not hold the tensor's energy: of a tensor that *is* such a product but
for its signs, nothing is.  So elements are taken further down until those taken hold enough of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize import blocks
from dynaquant_core.quantize.flat import flatten, host_view

__all__ = [
    "FEW",
    "MANY",
    "Sieve",
    "decode_product",
    "decode_ternary",
    "encode_mean",
    "encode_product",
    "encode_ternary",
    "factor_count",
    "factor_scale_count",
    "matrix_shape",
    "step_energy",
]

#: Rows that keep nothing else keep what is above this share of their largest.
LARGEST_SHARE: Final = 0.9

#: Elements of a large tensor that are tried with several bars; all are with the one that does for these.
SAMPLE: Final = 1 << 18
#: Elements that are worked on at a time.
CHUNK: Final = 1 << 18

Factors = tuple[NDArray[np.uint8], NDArray[np.int16]]
Array = NDArray[Any]


class Sieve(NamedTuple):
    """Which elements keep a sign.

    Args:
        bar: an element is kept where it is above this many times the product of its row and column.
        gain: all rows are scaled by this at most, or the bar is lowered; noise is the gain less 1, in the
            tensor's energy.
    """

    bar: float
    gain: float


#: A third of the elements of a bell shape, and noise of half the energy.
MANY: Final = Sieve(1.25, 2.0)
#: One or two in a hundred, and noise of eight times the energy.
FEW: Final = Sieve(3.0, 16.0)
#: A bar is lowered by this much at a time, this often at most; the last bar keeps whatever is not zero.
LOWER: Final = 0.75
LOWERED: Final = 10


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """(rows, columns) of a tensor seen as a matrix: cut between two dimensions where their sum is smallest.

    Example:
        >>> matrix_shape((64, 32, 3, 3)), matrix_shape((1, 196, 192)), matrix_shape((5,))
        ((64, 288), (196, 192), (5, 1))
    """
    cuts = [(prod(shape[:end]), prod(shape[end:])) for end in range(1, max(2, len(shape)))]
    return min(cuts, key=sum)


def factor_count(shape: Sequence[int]) -> int:
    """Values that describe a tensor of a shape: rows + columns."""
    return sum(matrix_shape(shape))


def factor_scale_count(shape: Sequence[int]) -> int:
    """Scales of those values: rows and columns are coded one after the other."""
    return sum(map(blocks.scale_count, matrix_shape(shape)))


def encode_product(tensor: Tensor) -> Factors:
    """Rows and columns of a tensor without negative values.

    Args:
        tensor: finite, floating, any shape and device, no value below zero.

    Returns:
        (codes uint8[rows + columns], scales int16[`factor_scale_count`]), rows first.

    Example:
        >>> codes, scales = encode_product(torch.tensor([[1.0, 2.0], [2.0, 4.0]]))
        >>> out = torch.empty(2, 2)
        >>> decode_product(codes, scales, out)
        >>> bool((out / torch.tensor([[1.0, 2.0], [2.0, 4.0]])).log2().abs().max() < 0.15)
        True
    """
    rows, columns = _means(matrix_of(tensor))
    return _coded(rows, columns)


def decode_product(codes: NDArray[np.uint8], scales: NDArray[np.int16], out: Tensor) -> None:
    """Fills a floating tensor with the product; what is positive there is positive in every dtype.

    Args:
        codes: uint8[rows + columns], as `encode_product` returned them.
        scales: int16, likewise.
        out: floating tensor of any shape and device.

    Raises:
        CorruptFileError: scales do not fit the codes.
    """
    shape = matrix_shape(out.shape)
    rows, columns = _decoded(codes, scales, shape)
    found = np.empty(shape, np.float32)
    for part in _chunks(shape):
        found[part] = _rounded(rows[part, None] * columns)
    _put(found, out)


def step_energy(tensor: Tensor, codes: NDArray[np.uint8], scales: NDArray[np.int16]) -> float:
    """By what the energy of an optimizer's steps grows with a product in place of its second moment.

    Steps are divided by the root, so it is the mean, over what is not zero, of value / product: 1 where they
    agree, 1.0 to 5 of matrices in training and up to 8 at its first step.  Far above that where a product
    tells nothing: parts of other scales that rows and columns do not tell, groups on a diagonal, an outlier.

    Args:
        tensor: no value below zero; any shape and device.
        codes: as `encode_product` made of it.
        scales: likewise.

    Example:
        >>> apart = torch.block_diag(torch.full((4, 4), 1e6), torch.ones(4, 4))
        >>> step_energy(apart, *encode_product(apart)) > 1e5
        True
    """
    values = matrix_of(tensor)
    rows, columns = (
        np.divide(1.0, means, out=np.zeros_like(means), where=means > 0)
        for means in _decoded(codes, scales, values.shape)
    )
    total = sum(float((values[part] * columns).sum(axis=1) @ rows[part]) for part in _chunks(values.shape))
    return total / max(1, int(np.count_nonzero(values)))


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
        >>> encode_ternary(torch.tensor([[3.0, -0.1], [0.1, -3.0]]))[0].tolist()
        [2, 1, 1, 0]
    """
    values = matrix_of(tensor)
    means, columns = _means(values)
    columns = _decoded_vector(*_encoded_vector(columns))
    bars = [sieve.bar * LOWER**times for times in range(LOWERED)] + [0.0]
    bars = bars[_first(values, means, columns, bars, sieve.gain) :]
    found = _sieved(values, means, columns, bars[0])
    for bar in bars[1:]:
        if found.gain <= sieve.gain:
            break
        found = min(found, _sieved(values, means, columns, bar), key=lambda kept: kept.gain)
    return found.signs.reshape(-1), *_coded(found.gain * found.rows, columns)


def decode_ternary(
    signs: NDArray[np.uint8], codes: NDArray[np.uint8], scales: NDArray[np.int16], out: Tensor
) -> None:
    """Fills a floating tensor with what `encode_ternary` returned; arguments as `decode_product`."""
    shape = matrix_shape(out.shape)
    rows, columns = _decoded(codes, scales, shape)
    found = np.empty(shape, np.float32)
    for part in _chunks(shape):
        sign = signs.reshape(shape)[part].astype(np.float32) - np.float32(1)
        found[part] = sign * _rounded(rows[part, None] * columns)
    _put(found, out)


def encode_mean(tensor: Tensor) -> Factors:
    """The mean of a tensor without negative values: one code and one scale.

    Example:
        >>> codes, scales = encode_mean(torch.tensor([1.0, 3.0]))
        >>> codes.size, scales.size
        (1, 1)
    """
    return _encoded_vector(_means(matrix_of(tensor))[0].mean(keepdims=True))


def matrix_of(tensor: Tensor) -> Array:
    """The values as float32[rows, columns] on the CPU; what is not zero stays so."""
    flat = blocks.nonzero_float32(host_view(flatten(tensor).cpu()))
    return flat.reshape(matrix_shape(tensor.shape))


def _means(values: Array) -> tuple[Array, Array]:
    """Mean magnitude of each row, and of each column over the mean of all; float64."""
    rows, columns = np.zeros(values.shape[0]), np.zeros(values.shape[1])
    for part in _chunks(values.shape):
        magnitudes = np.abs(values[part].astype(np.float64))
        rows[part] = magnitudes.mean(axis=1)
        columns += magnitudes.sum(axis=0)
    total = columns.sum() / max(1, columns.size)
    return rows, columns / total if total > 0 else columns


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
    for part in _chunks(values.shape):
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


def _coded(rows: Array, columns: Array) -> Factors:
    pairs = [_encoded_vector(rows), _encoded_vector(columns)]
    return np.concatenate([codes for codes, _ in pairs]), np.concatenate([scales for _, scales in pairs])


def _encoded_vector(values: Array) -> Factors:
    largest = float(np.finfo(np.float32).max)
    return blocks.encode(torch.from_numpy(np.minimum(values, largest)), signed=False)


def _decoded_vector(codes: NDArray[np.uint8], scales: NDArray[np.int16]) -> Array:
    out = torch.empty(codes.size, dtype=torch.float32, device="cpu")
    blocks.decode(codes, scales, out)
    return out.numpy().astype(np.float64)


def _decoded(
    codes: NDArray[np.uint8], scales: NDArray[np.int16], shape: tuple[int, int]
) -> tuple[Array, Array]:
    count = blocks.scale_count(shape[0])
    rows = _decoded_vector(codes[: shape[0]], scales[:count])
    return rows, _decoded_vector(codes[shape[0] :], scales[count:])


def _rounded(product: Array) -> Array:
    """Products of float32 values, exact as float64, as float32; never 0 nor infinite by rounding."""
    largest = float(np.finfo(np.float32).max)
    bounded = np.clip(product, 2.0**-149, largest, where=product > 0, out=product)
    return bounded.astype(np.float32)


def _chunks(shape: tuple[int, int]) -> Iterator[slice]:
    """Rows at a time; the same ones whatever the number of threads, as sums depend on them."""
    step = max(1, CHUNK // max(1, shape[1]))
    return (slice(start, start + step) for start in range(0, shape[0], step))


def _put(found: Array, out: Tensor) -> None:
    """Copies float32 values into a tensor of any floating dtype, what is not zero as what is not zero."""
    values = torch.from_numpy(found.reshape(-1)).view(out.shape)
    info = torch.finfo(out.dtype)
    smallest = max(info.smallest_normal * info.eps, 2.0**-149)
    if out.dtype in (torch.float16, torch.bfloat16):
        magnitude = values.abs().clamp(smallest, info.max)
        values = torch.where(values == 0, values, magnitude.copysign(values))
    out.detach().copy_(values)
