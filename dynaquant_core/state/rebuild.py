"""A skeleton and its tensors back into the state they were taken from.

Skeletons are read from files, so nothing about them is taken on trust: every node that `flatten` does not
write ends in CorruptFileError.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, NoReturn

import numpy as np
import torch

from dynaquant_core.errors import CorruptFileError, LimitError
from dynaquant_core.state.leaves import Namer, Path, dotted, name_is_too_long
from dynaquant_core.state.scalars import array_dtype, is_text, scalar_value
from dynaquant_core.state.strides import in_memory_order
from dynaquant_core.state.tree import MAX_DEPTH

__all__ = ["leaf_names", "unflatten", "unpack"]

#: Characters of all names together: a long key above many leaves must not multiply in memory.
MAX_NAMES: Final = 1 << 27

Lookup = Callable[[str], torch.Tensor]


def unflatten(skeleton: Any, lookup: Lookup) -> Any:
    """Puts a state together again.

    Args:
        skeleton: what `flatten` returned, or the same after a trip through JSON.
        lookup: gives the tensor of a leaf's name; called once a leaf, in the order of the skeleton.

    Returns:
        The state; tensors as ``lookup`` gives them, NumPy arrays on their memory where it is the CPU's.

    Raises:
        CorruptFileError: the skeleton is not one that `flatten` makes, or a tensor does not fit its node.

    Example:
        >>> unflatten({"w": ["t"], "lr": ["l", 0.1, 0.2]}, {"w": torch.ones(2)}.__getitem__)
        {'w': tensor([1., 1.]), 'lr': [0.1, 0.2]}
    """
    return _Walker(lookup).value(skeleton, ())


def unpack(node: Any) -> Any:
    """The value that `pack` took apart; a node of a leaf is a CorruptFileError.

    Example:
        >>> unpack(["u", 1, ["l"]])
        (1, [])
    """
    return _Walker(None).value(node, ())


def leaf_names(skeleton: Any) -> list[str]:
    """Names of the leaves in order, without building anything; checks every node on the way.

    Raises:
        CorruptFileError: as `unflatten`.

    Example:
        >>> leaf_names({"a": ["l", ["t"], ["t"], ["t", 0]]})
        ['a.0', 'a.1']
    """
    walker = _Names()
    walker.value(skeleton, ())
    return walker.names


class _Walker:
    """Depth first, in the order in which the skeleton was written."""

    def __init__(self, lookup: Lookup | None) -> None:
        self._lookup = lookup
        self._name = Namer()
        self._built: list[tuple[str, Any]] = []

    def value(self, node: Any, path: Path) -> Any:
        holds = isinstance(node, (dict, list))
        if len(path) > MAX_DEPTH or (holds and name_is_too_long(path)):
            _refuse(node, path)
        if not holds:
            return node
        if isinstance(node, dict):
            return {key: self.value(child, (*path, key)) for key, child in node.items()}
        tag = node[0] if node and isinstance(node[0], str) else _refuse(node, path)
        if tag == "l":
            return self._items(node, path)
        if tag == "u":
            return tuple(self._items(node, path))
        if tag == "k":
            return self._keyed(node, path)
        if tag == "o":
            return self._ordered(node, path)
        if tag in _LEAVES:
            return self._leaf(tag, node[1:], path)
        return scalar_value(node, dotted(path))

    def _items(self, node: list[Any], path: Path) -> list[Any]:
        return [self.value(child, (*path, i)) for i, child in enumerate(node[1:])]

    def _keyed(self, node: list[Any], path: Path) -> dict[str | int, Any]:
        if len(node) != 3 or not all(isinstance(part, list) for part in node[1:]):
            _refuse(node, path)
        keys = [scalar_value(key, dotted(path)) for key in node[1]]
        whole = all(type(key) in (str, int) for key in keys)
        if not whole or len(set(keys)) != len(keys) or len(keys) != len(node[2]):
            _refuse(node, path)
        return {key: self.value(child, (*path, key)) for key, child in zip(keys, node[2], strict=True)}

    def _ordered(self, node: list[Any], path: Path) -> OrderedDict[str | int, Any]:
        inner = node[1] if len(node) == 2 else None
        if not isinstance(inner, dict) and not (isinstance(inner, list) and inner[:1] == ["k"]):
            _refuse(node, path)
        return OrderedDict(self.value(inner, path))

    def _leaf(self, tag: str, rest: list[Any], path: Path) -> Any:
        if tag in "tn" and rest:
            return self._tied(tag, rest, path)
        if tag == "N":
            _array_type(rest, path)
        elif tag == "m":
            _memory_order(rest, path)
        elif rest:
            _refuse([tag, *rest], path)
        built = self._build(tag, rest, path, self._name(path))
        self._built.append(("t" if tag == "m" else tag, built))
        return built

    def _tied(self, tag: str, rest: list[Any], path: Path) -> Any:
        index = rest[0]
        known = len(rest) == 1 and type(index) is int and 0 <= index < len(self._built)
        if not known or self._built[index][0] != tag:
            _refuse([tag, *rest], path)
        return self._built[index][1]

    def _build(self, tag: str, rest: list[Any], path: Path, name: str) -> Any:
        if self._lookup is None:
            _refuse([tag, *rest], path)
        return _LEAVES[tag](self._lookup(name), rest, path)


class _Names(_Walker):
    """Collects names instead of tensors."""

    def __init__(self) -> None:
        super().__init__(None)
        self.names: list[str] = []
        self._characters = 0

    def _build(self, tag: str, rest: list[Any], path: Path, name: str) -> Any:  # noqa: ARG002
        self._characters += len(name)
        if self._characters > MAX_NAMES:
            raise LimitError(f"The names of the tree's leaves have more than {MAX_NAMES} characters.")
        self.names.append(name)


def _refuse(node: Any, path: Path) -> NoReturn:
    raise CorruptFileError(
        f"The tree's node {repr(node)[:80]} at {dotted(path)[:80]!r} is not one of this format."
    )


def _array_type(rest: list[Any], path: Path) -> tuple[np.dtype[Any], list[int]]:
    if len(rest) != 2 or not isinstance(rest[1], list):
        _refuse(["N", *rest], path)
    dtype, shape = array_dtype(rest[0]), rest[1]
    if not all(type(dim) is int and dim >= 0 for dim in shape) or len(shape) > MAX_DEPTH // 2:
        _refuse(["N", *rest], path)
    return dtype, shape


def _memory_order(rest: list[Any], path: Path) -> list[int]:
    order: Any = rest[0] if len(rest) == 1 else None
    whole = isinstance(order, list) and all(type(dim) is int for dim in order)
    if not whole or sorted(order) != list(range(len(order))):
        _refuse(["m", *rest], path)
    dims: list[int] = order
    return dims


def _permuted(tensor: torch.Tensor, rest: list[Any], path: Path) -> torch.Tensor:
    order = _memory_order(rest, path)
    if len(order) != tensor.dim():
        _refuse(["m", *rest], path)
    return in_memory_order(tensor, order)


def _tensor(tensor: torch.Tensor, rest: list[Any], path: Path) -> torch.Tensor:  # noqa: ARG001
    return tensor


def _array(tensor: torch.Tensor, rest: list[Any], path: Path) -> Any:  # noqa: ARG001
    try:
        return tensor.cpu().numpy()
    except TypeError:
        _refuse(["n"], path)


def _raw_array(tensor: torch.Tensor, rest: list[Any], path: Path) -> Any:
    dtype, shape = _array_type(rest, path)
    flat = _flat(tensor, (torch.uint8,), path)
    if flat.size != math.prod(shape) * dtype.itemsize:
        _refuse(["N", *rest], path)
    if dtype.kind == "U" and not is_text(flat, dtype):
        _refuse(["N", *rest], path)
    try:
        return flat.view(dtype).reshape(shape) if flat.size else np.zeros(shape, dtype)
    except ValueError:  # an empty array of absurd dimensions
        _refuse(["N", *rest], path)


def _bytes(tensor: torch.Tensor, rest: list[Any], path: Path) -> bytes:  # noqa: ARG001
    return bytes(_flat(tensor, (torch.uint8,), path).tobytes())


def _text(tensor: torch.Tensor, rest: list[Any], path: Path) -> str:
    try:
        return _bytes(tensor, rest, path).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        _refuse(["S"], path)


def _list(tensor: torch.Tensor, rest: list[Any], path: Path) -> list[Any]:  # noqa: ARG001
    numbers: list[Any] = _flat(tensor, (torch.int64, torch.float64), path).tolist()
    return numbers


def _tuple(tensor: torch.Tensor, rest: list[Any], path: Path) -> tuple[Any, ...]:
    return tuple(_list(tensor, rest, path))


def _flat(tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], path: Path) -> Any:
    if tensor.dtype not in dtypes or tensor.dim() != 1:
        raise CorruptFileError(f"The data at {dotted(path)[:80]!r} is stored as a tensor of {tensor.dtype}.")
    return tensor.cpu().numpy()


_LEAVES: dict[str, Callable[[torch.Tensor, list[Any], Path], Any]] = {
    "t": _tensor,
    "m": _permuted,
    "n": _array,
    "N": _raw_array,
    "B": _bytes,
    "S": _text,
    "L": _list,
    "U": _tuple,
}
