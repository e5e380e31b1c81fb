"""A training state as a JSON skeleton and a list of tensors, and back.

What goes in comes out: types, key order, NaN payloads, whole numbers of any size, tied tensors as one object.
Objects outside the closed table are refused with the path at which they sit.  Parameters come back as plain
tensors, and attributes of an ordered dictionary (a state dict's ``_metadata``) are not kept.

Node grammar: docs/FORMAT.md, "Tree".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.errors import UnsupportedStateError
from dynaquant_core.state.called import optimizer_keys
from dynaquant_core.state.leaves import (
    INT64,
    MAX_NAME,
    Leaf,
    Namer,
    Path,
    Source,
    as_leaf_tensor,
    dotted,
    name_is_too_long,
    tie_of,
)
from dynaquant_core.state.places import is_node
from dynaquant_core.state.scalars import plain_array_dtype, scalar_node
from dynaquant_core.state.strides import memory_order

__all__ = ["LONG", "LONG_TEXT", "MAX_DEPTH", "Tree", "flatten", "pack"]

#: Containers inside containers; deeper trees are refused (a list that holds itself would never end).
MAX_DEPTH: Final = 64

#: From this length on lists of floats or of whole numbers travel as a leaf, out of the index.
LONG: Final = 256

#: The same for bytes and text.
LONG_TEXT: Final = 1024


#: What a node is made of without a look at its path: a tokenizer's vocabulary has a hundred thousand of them.
PLAIN: Final = frozenset({int, float, bool, str, type(None)})


@dataclass(frozen=True, slots=True)
class Tree:
    """A flattened state.

    Args:
        skeleton: JSON-able; where each leaf goes, and every object that is not a leaf.
        leaves: in the order in which the skeleton meets them.
        ties: name of a leaf -> the other dotted paths at which the same tensor lies, where there are any.
    """

    skeleton: Any
    leaves: list[Leaf]
    ties: Mapping[str, list[str]] = field(default_factory=dict)

    def paths(self, leaf: Leaf) -> tuple[str, ...]:
        """Every dotted path of a leaf: its name, and those that are tied to it.

        Example:
            >>> head = torch.zeros(2, 3)
            >>> tree = flatten({"embed": head, "lm_head": head})
            >>> tree.paths(tree.leaves[0])
            ('embed', 'lm_head')
        """
        return (leaf.name, *self.ties.get(leaf.name, ()))


def flatten(state: object) -> Tree:
    """Takes a tree of supported objects apart.

    Raises:
        UnsupportedStateError: an object or a key that a checkpoint cannot hold; names its path.

    Example:
        >>> tree = flatten({"w": torch.zeros(2, 3), "step": 7})
        >>> tree.skeleton, [leaf.name for leaf in tree.leaves]
        ({'w': ['t'], 'step': 7}, ['w'])
    """
    builder = _Builder(inline=False)
    return Tree(builder.node(state, (), in_optimizer=False), builder.leaves, builder.ties)


def pack(value: object) -> Any:
    """The skeleton of a tree without tensors, arrays or other leaves; `unpack` takes it back.

    Raises:
        UnsupportedStateError: as `flatten`, and for a tensor or an array.

    Example:
        >>> pack({"quality": float("nan"), "met": True})
        {'quality': ['f', '000000000000f87f'], 'met': True}
    """
    return _Builder(inline=True).node(value, (), in_optimizer=False)


class _Builder:
    """Walks a state depth first; with ``inline`` nothing may become a leaf."""

    def __init__(self, *, inline: bool) -> None:
        self.inline = inline
        self.leaves: list[Leaf] = []
        self.ties: dict[str, list[str]] = {}
        self._name = Namer()
        self._tied: dict[Any, int] = {}

    def node(self, obj: Any, path: Path, *, in_optimizer: bool) -> Any:
        kind = type(obj)
        plain = kind in PLAIN and (kind is not str or len(obj) < LONG_TEXT)
        if len(path) > MAX_DEPTH or (not plain and name_is_too_long(path)):
            raise UnsupportedStateError(
                f"The state is nested too deep, or under too long keys, at {dotted(path)[:80]!r} (at most "
                f"{MAX_DEPTH} levels and {MAX_NAME} characters); look for a container that holds itself."
            )
        if plain:
            return scalar_node(obj, "")
        if kind is dict or kind is OrderedDict:
            return self._mapping(obj, path, in_optimizer)
        if isinstance(obj, torch.Tensor) and not self.inline:
            return self._tensor(obj, path, in_optimizer)
        if kind is np.ndarray and not self.inline:
            return self._array(obj, path, in_optimizer)
        if kind is list or kind is tuple:
            return self._sequence(obj, path, in_optimizer)
        if kind in (bytes, str) and len(obj) >= LONG_TEXT and not self.inline:
            data = obj if kind is bytes else obj.encode("utf-8", "surrogatepass")
            return self._data("B" if kind is bytes else "S", np.frombuffer(data, np.uint8), path)
        return scalar_node(obj, dotted(path))

    def _mapping(self, obj: dict[Any, Any], path: Path, in_optimizer: bool) -> Any:
        below = in_optimizer or is_node(obj)
        said = frozenset() if below else optimizer_keys(obj, at_root=not path)
        for key in obj:
            if type(key) not in (str, int):
                raise UnsupportedStateError(
                    f"The dictionary at {dotted(path)!r} has the key {key!r} of type {type(key).__name__}; "
                    "only text and whole numbers can be keys of a stored dictionary."
                )
        values = [
            self.node(value, (*path, key), in_optimizer=below or key in said) for key, value in obj.items()
        ]
        if all(type(key) is str for key in obj):
            node: Any = dict(zip(obj, values, strict=True))
        else:
            node = ["k", [scalar_node(key, dotted(path)) for key in obj], values]
        return ["o", node] if type(obj) is OrderedDict else node

    def _sequence(self, obj: list[Any] | tuple[Any, ...], path: Path, in_optimizer: bool) -> Any:
        is_list = type(obj) is list
        numbers = None if self.inline else _numbers(obj)
        if numbers is not None:
            return self._data("L" if is_list else "U", numbers, path)
        items = [self.node(item, (*path, i), in_optimizer=in_optimizer) for i, item in enumerate(obj)]
        return ["l" if is_list else "u", *items]

    def _tensor(self, obj: torch.Tensor, path: Path, in_optimizer: bool) -> list[Any]:
        tensor = as_leaf_tensor(obj, path)
        node = self._leaf("t", "tensor", tensor, tie_of(obj), path, in_optimizer)
        order = memory_order(tensor) if len(node) == 1 else None
        return node if order is None else ["m", order]

    def _array(self, array: NDArray[Any], path: Path, in_optimizer: bool) -> Any:
        dtype = plain_array_dtype(array.dtype)
        if dtype is None:
            raise UnsupportedStateError(
                f"The NumPy array at {dotted(path)!r} has dtype {array.dtype}, which a checkpoint "
                "cannot hold; convert it to numbers, dates or text of a fixed width first."
            )
        tie = tie_of(array)
        if not _torch_takes(array.dtype):
            flat = (
                np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else np.empty(0, "u1")
            )
            return [*self._data("N", flat, path), dtype, list(array.shape)]
        shared = array if _shareable(array) else array.copy()
        return self._leaf("n", "array", torch.from_numpy(shared), tie, path, in_optimizer)

    def _data(self, tag: str, array: NDArray[Any], path: Path) -> list[Any]:
        self.leaves.append(Leaf(self._name(path), path, torch.from_numpy(array.copy()), "data", False))
        return [tag]

    def _leaf(
        self, tag: str, source: Source, tensor: torch.Tensor, tie: Any, path: Path, in_optimizer: bool
    ) -> list[Any]:
        if tie in self._tied:
            first = self.leaves[self._tied[tie]]
            self.ties.setdefault(first.name, []).append(dotted(path))
            return [tag, self._tied[tie]]
        self._tied[tie] = len(self.leaves)
        self.leaves.append(Leaf(self._name(path), path, tensor, source, in_optimizer))
        return [tag]


def _torch_takes(dtype: np.dtype[Any]) -> bool:
    """Whether torch has the dtype too; the others (dates, text, foreign byte order) travel as bytes."""
    sizes = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
    return dtype.isnative and dtype.itemsize in sizes.get(dtype.kind, ())


def _shareable(array: NDArray[Any]) -> bool:
    """Whether torch can stand on the array's own memory."""
    whole = all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
    return array.flags.writeable and array.flags.aligned and whole


def _numbers(items: list[Any] | tuple[Any, ...]) -> NDArray[Any] | None:
    """A long list of floats, or of whole numbers of 64 bits, as an array; None for any other."""
    if len(items) < LONG:
        return None
    kinds = set(map(type, items))
    if kinds == {float}:
        return np.array(items, np.float64)
    if kinds == {int} and min(items) in INT64 and max(items) in INT64:
        return np.array(items, np.int64)
    return None
