"""Leaves of a tree: its tensors, each under a unique dotted name, shared storage found once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.errors import UnsupportedStateError
from dynaquant_core.state.spec import dtype_name

__all__ = [
    "INT64",
    "MAX_NAME",
    "SHARDED",
    "Leaf",
    "Namer",
    "Path",
    "Source",
    "as_leaf_tensor",
    "dotted",
    "is_plain",
    "name_is_too_long",
    "tie_of",
]

#: Characters of a leaf's name.
MAX_NAME: Final = 1024

#: Names of tensor subclasses that hold one rank's share only; torch.save would keep that share alone.
SHARDED: Final = frozenset({"DTensor", "ShardedTensor"})

#: What can be done about most tensors that are refused.
MAKE_PLAIN: Final = "convert it to a plain dense tensor first"

ON_META: Final = "on the meta device (it has no values)"
FREED: Final = "without memory of its own (it was freed)"
WITHOUT_VALUES: Final = (ON_META, FREED)

#: Whole numbers outside travel as hexadecimal text, which has no length limit on parsing.
INT64: Final = range(-(2**63), 2**63)

Path = tuple[str | int, ...]
Source = Literal["tensor", "array", "data"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of a tree.

    Args:
        name: its dotted path, made unique.
        path: keys and indices from the root.
        tensor: detached; shares memory with the tree's own tensor, so writing into it writes into the tree.
        source: "tensor", "array" (a NumPy array) or "data" (long bytes, a long list of numbers, an array of
            dates or text: never anything but exact).
        in_optimizer: whether what it lies under is an optimizer's: a node that holds both ``state`` and
            ``param_groups``, or a key that says so ("optimizer", "D_opt").
    """

    name: str
    path: Path
    tensor: torch.Tensor
    source: Source
    in_optimizer: bool


@dataclass(slots=True)
class Namer:
    """Gives each path a dotted name of its own; the same paths in the same order get the same names.

    Example:
        >>> name = Namer()
        >>> name(("a", "b")), name(("a.b",)), name(())
        ('a.b', 'a.b~2', 'value')
    """

    used: set[str] = field(default_factory=set)

    def __call__(self, path: Path) -> str:
        """The name of the next leaf; never empty."""
        base = name = dotted(path)
        count = 1
        while name in self.used:
            count += 1
            name = f"{base}~{count}"
        self.used.add(name)
        return name


def dotted(path: Path) -> str:
    """A path as text; the root is called "value"."""
    return ".".join(_component(key) for key in path) or "value"


def _component(key: str | int) -> str:
    """A key as text; numbers over 64 bits in hexadecimal, which Python writes at any length."""
    return key if isinstance(key, str) else str(key) if key in INT64 else hex(key)


def name_is_too_long(path: Path) -> bool:
    """Whether a leaf's name would be longer than `MAX_NAME`, so that names cannot outgrow the index."""
    return sum(len(key) if isinstance(key, str) else key.bit_length() for key in path) > MAX_NAME


def as_leaf_tensor(tensor: torch.Tensor, path: Path) -> torch.Tensor:
    """The tensor, detached, if a checkpoint can hold it.

    Raises:
        UnsupportedStateError: sparse, quantised, meta or of a tensor subclass; names its path.
    """
    problem = _problem(tensor)
    if problem is not None:
        advice = MAKE_PLAIN if problem not in WITHOUT_VALUES else "give it values or leave it out"
        raise UnsupportedStateError(
            f"The tensor at {dotted(path)!r} is {problem}, which a checkpoint cannot hold; {advice}."
        )
    return tensor.detach()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a checkpoint can hold the tensor; then it takes part in arithmetic, too.

    Example:
        >>> is_plain(torch.ones(2)), is_plain(torch.ones(2).to_sparse())
        (True, False)
    """
    return _problem(tensor) is None


def _problem(tensor: torch.Tensor) -> str | None:
    kind = type(tensor)
    if tensor.is_nested:
        return "nested"
    if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return f"of the tensor subclass {kind.__module__}.{kind.__qualname__}"
    if tensor.layout != torch.strided:
        return f"of layout {tensor.layout}"
    if tensor.is_meta:
        return ON_META
    if tensor.numel() and not tensor.untyped_storage().nbytes():
        return FREED
    return None if dtype_name(tensor.dtype) else f"of dtype {tensor.dtype}"


def tie_of(obj: torch.Tensor | NDArray[Any]) -> Hashable:
    """What two objects must have in common to be one leaf: storage, offset, shape, stride and dtype.

    Empty ones have no storage to share and are tied only where they are one object.
    """
    if isinstance(obj, np.ndarray):
        if obj.size == 0:
            return "array", id(obj)
        return "array", obj.__array_interface__["data"][0], obj.shape, obj.strides, obj.dtype.str
    if obj.numel() == 0:
        return "tensor", id(obj)
    start = obj.untyped_storage().data_ptr(), obj.storage_offset(), obj.is_conj(), obj.is_neg()
    return "tensor", str(obj.device), *start, tuple(obj.shape), obj.stride(), obj.dtype
