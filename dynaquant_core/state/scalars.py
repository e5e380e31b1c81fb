"""Leafless objects of a tree as JSON nodes, and back, exactly (docs/FORMAT.md, "Tree").

None, booleans, whole numbers of 64 bits, finite floats and text are JSON's own.  Everything else is a tagged
list: a closed table of converters, nothing of which can run code when it is read.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.errors import CorruptFileError, UnsupportedStateError
from dynaquant_core.state.leaves import INT64
from dynaquant_core.state.spec import dtype_name, dtype_of

__all__ = ["array_dtype", "is_text", "plain_array_dtype", "scalar_node", "scalar_value"]

#: Dtypes of NumPy arrays and scalars that are plain bytes: no objects, no records.
_ARRAY_DTYPE: Final = re.compile(r"[<>|][biufcmMSU]\d{1,9}(\[\d{0,9}[a-zA-Z]{1,2}\])?")


def scalar_node(obj: object, where: str) -> Any:
    """The JSON node of an object that holds no other object.

    Args:
        obj: any object.
        where: its dotted path, for the error.

    Raises:
        UnsupportedStateError: the object is not in the closed table; names its path and type.

    Example:
        >>> scalar_node(1.5, "lr"), scalar_node(float("inf"), "best"), scalar_node(torch.float16, "dtype")
        (1.5, ['f', '000000000000f07f'], ['y', 'float16'])
    """
    kind = type(obj)
    if obj is None or kind in (bool, str):
        return obj
    encode = _ENCODERS.get(kind)
    if encode is None:
        encode = next((use for base, use in _BY_BASE if isinstance(obj, base)), None)
    node = encode(obj) if encode is not None else None
    if node is None:
        raise UnsupportedStateError(
            f"The state holds {_described(obj)} at {where!r}, which a checkpoint cannot hold; "
            "convert it to plain numbers, text, bytes, lists, dictionaries or tensors first."
        )
    return node


def scalar_value(node: Any, where: str) -> Any:
    """The object of a node that `scalar_node` made.

    Raises:
        CorruptFileError: it made no such node.

    Example:
        >>> scalar_value(["d", 1, 0, 5], "elapsed")
        datetime.timedelta(days=1, microseconds=5)
    """
    if not isinstance(node, (list, dict)):
        return node
    try:
        return _DECODERS[node[0]](*node[1:])
    except CorruptFileError:
        raise
    except (
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        OverflowError,
        ArithmeticError,
        struct.error,
    ) as error:
        text = repr(node)[:80]
        raise CorruptFileError(f"The tree's node {text} at {where!r} is not one of this format.") from error


def array_dtype(text: str) -> np.dtype[Any]:
    """The NumPy dtype of a stored array or scalar.

    Raises:
        CorruptFileError: it is not a dtype of plain bytes.
    """
    if isinstance(text, str) and _ARRAY_DTYPE.fullmatch(text):
        try:
            return np.dtype(text)
        except TypeError:
            pass
    raise CorruptFileError(f"The NumPy dtype {str(text)[:40]!r} is not one that a checkpoint can hold.")


def plain_array_dtype(dtype: np.dtype[Any]) -> str | None:
    """The text that `array_dtype` takes back, or None for objects, records and foreign dtypes."""
    text = dtype.str
    return text if dtype.names is None and _ARRAY_DTYPE.fullmatch(text) else None


def is_text(data: NDArray[np.uint8], dtype: np.dtype[Any]) -> bool:
    """Whether the bytes of a text of NumPy's are letters; with others it fails wherever it is looked at.

    Example:
        >>> [is_text(np.uint8([97, 0, 0, 0]), np.dtype(order + "U1")) for order in "<>"]
        [True, False]
    """
    codes = data.view(np.dtype(np.uint32).newbyteorder(dtype.byteorder))
    return codes.size == 0 or bool(codes.max() <= sys.maxunicode)


def _described(obj: object) -> str:
    kind = type(obj)
    if isinstance(obj, np.generic):
        return f"a NumPy scalar of dtype {obj.dtype}"
    advice = ""
    if isinstance(obj, np.ndarray):
        advice = " (store np.array() of it)"
    elif isinstance(obj, tuple) and hasattr(obj, "_asdict"):
        advice = " (store its _asdict())"
    return f"an object of type {kind.__module__}.{kind.__qualname__}{advice}"


def _int_node(value: int) -> Any:
    return value if value in INT64 else ["i", hex(value)]


def _float_node(value: float) -> Any:
    return value if math.isfinite(value) else ["f", struct.pack("<d", value).hex()]


def _numpy_node(value: np.generic) -> Any:
    text = plain_array_dtype(value.dtype)
    data = value.tobytes() if value.dtype.itemsize else b""  # NumPy pads an empty text
    return None if text is None else ["s", text, data.hex()]


def _dtype_node(value: torch.dtype) -> Any:
    name = dtype_name(value)
    return None if name is None else ["y", name]


def _numpy_scalar(text: str, digits: str) -> Any:
    dtype, data = array_dtype(text), bytes.fromhex(digits)
    if len(data) != dtype.itemsize:
        raise ValueError(digits)
    if dtype.kind == "U" and not is_text(np.frombuffer(data, np.uint8), dtype):
        raise ValueError(digits)
    return np.frombuffer(data, dtype)[0] if data else np.zeros((), dtype)[()]


def _size(*dims: int) -> torch.Size:
    if any(type(dim) is not int for dim in dims):
        raise TypeError(dims)
    return torch.Size(dims)


_ENCODERS: Final[dict[type, Callable[[Any], Any]]] = {
    int: _int_node,
    float: _float_node,
    bytes: lambda value: ["b", base64.b64encode(value).decode("ascii")],
    timedelta: lambda value: ["d", value.days, value.seconds, value.microseconds],
    torch.dtype: _dtype_node,
    torch.Size: lambda value: ["z", *value],
}

_BY_BASE: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (np.generic, _numpy_node),
    (PurePath, lambda value: ["p", str(value)]),
)

_DECODERS: Final[dict[str, Callable[..., Any]]] = {
    "i": lambda digits: int(digits, 16),
    "f": lambda digits: struct.unpack("<d", bytes.fromhex(digits))[0],
    "b": lambda text: base64.b64decode(text, validate=True),
    "d": lambda days, seconds, micro: timedelta(days=days, seconds=seconds, microseconds=micro),
    "y": dtype_of,
    "z": _size,
    "p": Path,
    "s": _numpy_scalar,
}
