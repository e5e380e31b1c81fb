"""The tensors of what a model is called with: they live anyway, whatever holds them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, Final

from torch import Tensor, nn

__all__ = ["tensors_of"]

#: How many objects of unknown kinds are gone into, one inside of the other: a batch, its sides, their masks.
LEVELS: Final = 4

#: What holds nothing, and what holds no batch, but may hold the world.
CLOSED: Final = (str, bytes, int, float, complex, nn.Module, type, ModuleType)


def tensors_of(tree: Any) -> Iterator[Tensor]:
    """The tensors of nested sequences, sets and mappings, and of objects' attributes, a few levels deep.

    Modules are left out, and what an object works out when it is asked.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> [one.item() for one in tensors_of([SimpleNamespace(pixels={"left": torch.tensor(7)}), "x"])]
        [7]
    """
    return _walk(tree, LEVELS, set())


def _walk(tree: Any, levels: int, above: set[int]) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
        return
    if isinstance(tree, CLOSED) or id(tree) in above:
        return
    above = above | {id(tree)}
    if isinstance(tree, Mapping):
        for item in tree.values():
            yield from _walk(item, levels, above)
    elif isinstance(tree, (tuple, list, set, frozenset, deque)):
        for item in tree:
            yield from _walk(item, levels, above)
    if levels:
        for item in _attributes(tree):
            yield from _walk(item, levels - 1, above)


def _attributes(of: Any) -> list[Any]:
    """What an object holds under its names and in its slots; nothing of plain values."""
    held = getattr(of, "__dict__", None)
    found = list(held.values()) if isinstance(held, dict) else []
    slots = [vars(one).get("__slots__", ()) for one in type(of).__mro__]
    names = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
    for name in names:
        value = getattr(of, name, None) if name not in ("__dict__", "__weakref__") else None
        found += [] if value is None else [value]
    return found
