"""A state as ``torch.load(weights_only=True)`` reads it: no NumPy arrays, time spans, dates or paths."""

from __future__ import annotations

from collections import OrderedDict
from datetime import timedelta
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynaquant_core.errors import UnsupportedStateError
from dynaquant_core.state.leaves import Path, dotted

__all__ = ["without_code"]


def without_code(state: Any) -> tuple[Any, list[Path]]:
    """The same tree of types that torch reads back without running code, and where it differs.

    Arrays become tensors, those of text lists, NumPy scalars and time spans numbers (seconds), dates and
    paths text.  Numbers that equal the scalars in their place are no difference, and text that does.

    Raises:
        UnsupportedStateError: an array or a scalar has a dtype that torch does not have; names its path.

    Example:
        >>> without_code({"log": [timedelta(minutes=1)], "best": np.float64(2)})
        ({'log': [60.0], 'best': 2.0}, [('log', 0)])
    """
    changed: list[Path] = []
    return _plain(state, (), changed), changed


def _plain(value: Any, path: Path, changed: list[Path]) -> Any:
    if isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind((key, _plain(child, (*path, _named(key)), changed)) for key, child in value.items())
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(child, (*path, i), changed) for i, child in enumerate(value))
    if isinstance(value, np.ndarray | timedelta | np.timedelta64 | np.datetime64 | PurePath):
        changed.append(path)
    if isinstance(value, np.ndarray):
        return _array(value, path)
    if isinstance(value, np.generic):
        return _number(value, path)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, PurePath) else value


def _named(key: Any) -> str | int:
    """A key as it stands in a path; what a framework keeps may have others than a store's."""
    return key if isinstance(key, str | int) else str(key)


def _number(value: np.generic[Any], path: Path) -> Any:
    if isinstance(value, np.longdouble | np.clongdouble):  # of which `item` makes no number of Python's
        return complex(value) if isinstance(value, np.clongdouble) else float(value)
    if isinstance(value, np.timedelta64):
        return float(_seconds(value, path))
    return str(value) if isinstance(value, np.datetime64) else value.item()


def _array(array: Any, path: Path) -> Tensor | list[Any] | str | bytes:
    """A tensor; of text and dates, which it cannot hold, a list; one text where it has no dimension."""
    if array.dtype.kind == "m":
        array = np.asarray(_seconds(array, path))
    if array.dtype.kind == "M":
        array = np.datetime_as_string(array)
    if array.dtype.kind in "SU":
        text: list[Any] | str | bytes = array.tolist()
        return text
    try:
        native = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        return torch.from_numpy(native.reshape(array.shape))
    except TypeError as error:
        raise _refusal("array", array, path) from error


def _seconds(spans: Any, path: Path) -> Any:
    """Time spans as seconds; one of months is no number of them."""
    try:
        return spans / np.timedelta64(1, "s")
    except TypeError as error:
        raise _refusal("time span", spans, path) from error


def _refusal(what: str, value: Any, path: Path) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"The NumPy {what} at {dotted(path)!r} has dtype {value.dtype}, which a torch file cannot hold."
    )
