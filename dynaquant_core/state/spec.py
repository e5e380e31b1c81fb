"""Shapes and dtypes of stored tensors, by name.

The table of dtypes is closed: a dtype that is not in it has no byte layout that a file could promise to give
back bit for bit (quantised and sub-byte dtypes), so trees that hold one are refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

from dynaquant_core.errors import CorruptFileError, VersionError

__all__ = ["TensorSpec", "dtype_name", "dtype_of"]

_BYTES: Final = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "uint32": 4,
    "int32": 4,
    "uint64": 8,
    "int64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}

_DTYPES: Final = {name: getattr(torch, name) for name in _BYTES if hasattr(torch, name)}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a stored tensor.

    Args:
        shape: as given; () for a 0-d tensor.
        dtype: torch's name without the prefix, one of the closed table.

    Example:
        >>> TensorSpec((2, 3), "bfloat16").nbytes
        12
    """

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """The spec of a tensor whose dtype is in the table (`flatten` lets no other in)."""
        return cls(tuple(tensor.shape), _NAMES[tensor.dtype])

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in its own dtype."""
        return self.numel * item_bytes(self.dtype)


def item_bytes(name: str) -> int:
    """Bytes of one element.

    Raises:
        CorruptFileError: the name is not in the table.
    """
    if name not in _BYTES:
        raise CorruptFileError(f"The dtype {name!r} is not one that a checkpoint can hold.")
    return _BYTES[name]


def dtype_name(dtype: torch.dtype) -> str | None:
    """The table's name of a dtype, or None where a checkpoint cannot hold it.

    Example:
        >>> dtype_name(torch.bfloat16), dtype_name(torch.qint8)
        ('bfloat16', None)
    """
    return _NAMES.get(dtype)


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a table's name.

    Raises:
        CorruptFileError: the name is not in the table.
        VersionError: it is, but the installed PyTorch does not have it.

    Example:
        >>> dtype_of("float32")
        torch.float32
    """
    item_bytes(name)
    if name not in _DTYPES:
        raise VersionError(
            f"The dtype {name!r} needs a newer PyTorch than {torch.__version__}; upgrade torch."
        )
    dtype: torch.dtype = _DTYPES[name]
    return dtype
