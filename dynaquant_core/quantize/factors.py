"""A matrix as the product of a value a row and a value a column (ours).

Second moments come close to such a product (Adafactor, arXiv 1804.04235): v_ij ~ mean of row i times mean of
column j, over the mean of all.  The values are kept in the 8-bit code of `blocks`, so rows + columns bytes
serve rows x columns elements.  `ternary` and `levels` put a code an element on top of it.

Guarantees: an element of a product is positive unless all of its row or of its column was zero, and then it
is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.quantize import blocks
from dynaquant_core.quantize.flat import flatten, host_view

__all__ = [
    "Array",
    "Factors",
    "coded_pair",
    "decode_product",
    "decoded_pair",
    "decoded_vector",
    "encode_mean",
    "encode_product",
    "encoded_vector",
    "factor_count",
    "factor_scale_count",
    "matrix_of",
    "matrix_shape",
    "means_of",
    "put",
    "rounded",
    "row_chunks",
    "step_energy",
]

#: Elements that are worked on at a time.
CHUNK: Final = 1 << 18

Factors = tuple[NDArray[np.uint8], NDArray[np.int16]]
Array = NDArray[Any]


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


def encode_product(tensor: Tensor, key: int | None = None) -> Factors:
    """Rows and columns of a tensor without negative values.

    Args:
        tensor: finite, floating, any shape and device, no value below zero.
        key: as of `blocks.encode`.

    Returns:
        (codes uint8[rows + columns], scales int16[`factor_scale_count`]), rows first.

    Example:
        >>> codes, scales = encode_product(torch.tensor([[1.0, 2.0], [2.0, 4.0]]))
        >>> out = torch.empty(2, 2)
        >>> decode_product(codes, scales, out)
        >>> bool((out / torch.tensor([[1.0, 2.0], [2.0, 4.0]])).log2().abs().max() < 0.15)
        True
    """
    rows, columns = means_of(matrix_of(tensor))
    columns = decoded_vector(*encoded_vector(columns))
    # Under the columns as decoded: of what was restored, rows are then what they were.
    return coded_pair(rows / (columns.mean() or 1.0), columns, key)


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
    rows, columns = decoded_pair(codes, scales, shape)
    found = np.empty(shape, np.float32)
    for part in row_chunks(shape):
        found[part] = rounded(rows[part, None] * columns)
    put(found, out)


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
        for means in decoded_pair(codes, scales, values.shape)
    )
    total = sum(float((values[part] * columns).sum(axis=1) @ rows[part]) for part in row_chunks(values.shape))
    return total / max(1, int(np.count_nonzero(values)))


def encode_mean(tensor: Tensor, key: int | None = None) -> Factors:
    """The mean of a tensor without negative values: one code and one scale; ``key`` as of `blocks.encode`.

    Example:
        >>> codes, scales = encode_mean(torch.tensor([1.0, 3.0]))
        >>> codes.size, scales.size
        (1, 1)
    """
    return encoded_vector(means_of(matrix_of(tensor))[0].mean(keepdims=True), key)


def matrix_of(tensor: Tensor) -> Array:
    """The values as float32[rows, columns] on the CPU; what is not zero stays so."""
    flat = blocks.nonzero_float32(host_view(flatten(tensor).cpu()))
    return flat.reshape(matrix_shape(tensor.shape))


def means_of(values: Array) -> tuple[Array, Array]:
    """Mean magnitude of each row, and of each column over the mean of all; float64."""
    rows, columns = np.zeros(values.shape[0]), np.zeros(values.shape[1])
    for part in row_chunks(values.shape):
        magnitudes = np.abs(values[part].astype(np.float64))
        rows[part] = magnitudes.mean(axis=1)
        columns += magnitudes.sum(axis=0)
    total = columns.sum() / max(1, columns.size)
    return rows, columns / total if total > 0 else columns


def coded_pair(rows: Array, columns: Array, key: int | None = None) -> Factors:
    """Codes and scales of the rows, then of the columns.

    Rows are drawn where there is a key: they rise and fall with the whole tensor.  Columns, which are shares
    of it, stay about what they are, and to the nearest step they stay it exactly.
    """
    pairs = [encoded_vector(rows, key), encoded_vector(columns)]
    return np.concatenate([codes for codes, _ in pairs]), np.concatenate([scales for _, scales in pairs])


def encoded_vector(values: Array, key: int | None = None) -> Factors:
    """Codes and scales of positive values, what is beyond float32 as its largest; ``key`` as there."""
    largest = float(np.finfo(np.float32).max)
    return blocks.encode(torch.from_numpy(np.minimum(values, largest)), signed=False, key=key)


def decoded_vector(codes: NDArray[np.uint8], scales: NDArray[np.int16]) -> Array:
    """The values of `encoded_vector`, as a reader gets them; float64."""
    out = torch.empty(codes.size, dtype=torch.float32, device="cpu")
    blocks.decode(codes, scales, out)
    return out.numpy().astype(np.float64)


def decoded_pair(
    codes: NDArray[np.uint8], scales: NDArray[np.int16], shape: tuple[int, int]
) -> tuple[Array, Array]:
    """The values of rows and of columns of `coded_pair`; float64."""
    count = blocks.scale_count(shape[0])
    rows = decoded_vector(codes[: shape[0]], scales[:count])
    return rows, decoded_vector(codes[shape[0] :], scales[count:])


def rounded(product: Array) -> Array:
    """Products of float32 values, exact as float64, as float32; never 0 nor infinite by rounding."""
    largest = float(np.finfo(np.float32).max)
    bounded = np.clip(product, 2.0**-149, largest, where=product > 0, out=product)
    return bounded.astype(np.float32)


def row_chunks(shape: tuple[int, int]) -> Iterator[slice]:
    """Rows at a time; the same ones whatever the number of threads, as sums depend on them."""
    step = max(1, CHUNK // max(1, shape[1]))
    return (slice(start, start + step) for start in range(0, shape[0], step))


def put(found: Array, out: Tensor) -> None:
    """Copies float32 values into a tensor of any floating dtype, what is not zero as what is not zero."""
    values = torch.from_numpy(found.reshape(-1)).view(out.shape)
    info = torch.finfo(out.dtype)
    smallest = max(info.smallest_normal * info.eps, 2.0**-149)
    if out.dtype in (torch.float16, torch.bfloat16):
        magnitude = values.abs().clamp(smallest, info.max)
        values = torch.where(values == 0, values, magnitude.copysign(values))
    out.detach().copy_(values)
