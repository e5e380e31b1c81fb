"""The part of a tree that holds some tensors only, so that a model can be loaded without its optimizer.

Works on the skeleton (docs/FORMAT.md, "Tree"): branches without a wanted leaf are cut, places in lists that
are not wanted hold None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dynaquant_core.config import require
from dynaquant_core.state import leaf_names
from dynaquant_core.state.roles import is_named

__all__ = ["covers", "data_leaves", "patterns_of", "prune"]

#: Tags of leaves, and of the containers that are lists in JSON.
LEAVES = frozenset("tmnNBSLU")
CONTAINERS = frozenset("luko")

_CUT = object()


def patterns_of(argument: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """Name patterns as a user gives them, one or several; raises ConfigError for anything but texts.

    Example:
        >>> patterns_of("names", "model"), patterns_of("exact", ["a.*", "b"])
        (('model',), ('a.*', 'b'))
    """
    try:
        patterns = (given,) if isinstance(given, str) else tuple(given)
        good = all(isinstance(pattern, str) for pattern in patterns)
    except TypeError:  # of what cannot be iterated over
        patterns, good = (), False
    require(good, f"{argument} must be name patterns (texts), got {given!r:.80}.")
    return patterns


def covers(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern is the name itself, or of something that it lies in, counted from the root.

    Example:
        >>> covers("model.fc.weight", ["model.fc"]), covers("optimizer.model.fc", ["model.fc"])
        (True, False)
    """
    parts = name.split(".")
    above = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return any(is_named(candidate, pattern) for pattern in patterns for candidate in above)


def data_leaves(skeleton: Any) -> set[str]:
    """Names of the leaves that are no tensors or numeric arrays to the user: long bytes, long lists, dates.

    Example:
        >>> data_leaves({"a": ["t"], "b": ["l", ["B"], ["t", 0]]})
        {'b.0'}
    """
    return {name for name, tag in zip(leaf_names(skeleton), _tags(skeleton), strict=True) if tag not in "tmn"}


def _tags(node: Any) -> Iterator[str]:
    """Tags of the leaves in order, tied ones once."""
    if isinstance(node, dict):
        for child in node.values():
            yield from _tags(child)
    elif isinstance(node, list) and node[0] in LEAVES:
        if node[0] not in "tn" or len(node) == 1:
            yield node[0]
    elif isinstance(node, list) and node[0] in CONTAINERS:
        for child in node[2] if node[0] == "k" else node[1:]:
            yield from _tags(child)


def prune(skeleton: Any, patterns: Iterable[str]) -> tuple[Any, list[str]]:
    """Cuts a sound skeleton down to what ``patterns`` cover.

    Returns:
        The smaller skeleton, and the names of its leaves in order; they are the names in the whole tree.

    Example:
        >>> prune({"a": ["t"], "b": {"c": ["t"], "d": 1}}, ["b.c"])
        ({'b': {'c': ['t']}}, ['b.c'])
    """
    pruner = _Pruner(leaf_names(skeleton), list(patterns))
    node = pruner.node(skeleton, ())
    return (None if node is _CUT else node), pruner.kept


class _Pruner:
    """Walks in the order in which leaves are numbered."""

    def __init__(self, names: list[str], patterns: list[str]) -> None:
        self._names = names
        self._patterns = patterns
        self._next = 0
        self._number: dict[int, int] = {}
        self.kept: list[str] = []

    def node(self, node: Any, path: tuple[str, ...]) -> Any:
        if isinstance(node, dict):
            return self._mapping(node, path)
        tag = node[0] if isinstance(node, list) else None
        if tag in LEAVES:
            return self._leaf(node, path)
        if tag in ("l", "u"):
            return self._sequence(node, path)
        if tag == "k":
            return self._keyed(node, path)
        if tag == "o":
            child = self.node(node[1], path)
            return _CUT if child is _CUT else ["o", child]
        return node if self._covered(path) else _CUT

    def _mapping(self, node: dict[str, Any], path: tuple[str, ...]) -> Any:
        children = {key: self.node(child, (*path, key)) for key, child in node.items()}
        children = {key: child for key, child in children.items() if child is not _CUT}
        return children if children or self._covered(path) else _CUT

    def _sequence(self, node: list[Any], path: tuple[str, ...]) -> Any:
        items = [self.node(child, (*path, str(i))) for i, child in enumerate(node[1:])]
        if all(item is _CUT for item in items) and not self._covered(path):
            return _CUT
        return [node[0], *(None if item is _CUT else item for item in items)]

    def _keyed(self, node: list[Any], path: tuple[str, ...]) -> Any:
        pairs = [
            (key, self.node(child, (*path, str(key)))) for key, child in zip(node[1], node[2], strict=True)
        ]
        pairs = [(key, child) for key, child in pairs if child is not _CUT]
        if not pairs and not self._covered(path):
            return _CUT
        return ["k", [key for key, _ in pairs], [child for _, child in pairs]]

    def _leaf(self, node: list[Any], path: tuple[str, ...]) -> Any:
        tied = node[0] in "tn" and len(node) == 2
        number = node[1] if tied else self._next
        self._next += not tied
        known = self._covered(path) or (not tied and covers(self._names[number], self._patterns))
        if not known:
            return _CUT
        if number in self._number:
            return [node[0], self._number[number]]
        self._number[number] = len(self.kept)
        self.kept.append(self._names[number])
        return [node[0]] if tied else node

    def _covered(self, path: tuple[str, ...]) -> bool:
        return covers(".".join(path), self._patterns)
