"""Columns of the index's tables: read back with every element checked.

A table is stored column by column, because neighbours in a column resemble each other: a thousand small
dictionaries would be five times the bytes after compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynaquant_core.errors import CorruptFileError

__all__ = ["column", "counts", "pick", "section", "words"]


def section(node: Any, key: str, kind: type) -> Any:
    """The member ``key`` of a JSON object, of the given type.

    Raises:
        CorruptFileError: it is missing or of another type.

    Example:
        >>> section({"dtype": [0, 1]}, "dtype", list)
        [0, 1]
    """
    if not isinstance(node, dict) or not isinstance(node.get(key), kind):
        raise CorruptFileError(f"The index has no sound {key!r}.")
    return node[key]


def column(table: Any, key: str, length: int) -> list[Any]:
    """A column of exactly ``length`` elements."""
    values: list[Any] = section(table, key, list)
    if len(values) != length:
        raise CorruptFileError(f"The index's column {key!r} has {len(values)} elements, expected {length}.")
    return values


def counts(table: Any, key: str, length: int, *, low: int = 0, high: int = 1 << 62) -> list[int]:
    """A column of whole numbers in [low, high].

    Example:
        >>> counts({"bytes": [3, 4]}, "bytes", 2)
        [3, 4]
    """
    values = column(table, key, length)
    if not all(type(value) is int and low <= value <= high for value in values):
        raise CorruptFileError(f"The index's column {key!r} holds something else than numbers in its range.")
    return values


def words(table: Any, key: str) -> list[str]:
    """A list of distinct words that columns refer to by number."""
    values: list[Any] = section(table, key, list)
    if not all(isinstance(value, str) for value in values) or len(set(values)) != len(values):
        raise CorruptFileError(f"The index's words {key!r} are not distinct words.")
    return values


def pick(table: Any, key: str, length: int, choices: Sequence[str]) -> list[str]:
    """A column of numbers of words, as the words.

    Example:
        >>> pick({"role": [1, 0]}, "role", 2, ("weight", "moment"))
        ['moment', 'weight']
    """
    return [choices[value] for value in counts(table, key, length, high=len(choices) - 1)]


def numbered(values: Sequence[str], choices: Sequence[str]) -> list[int]:
    """The inverse of `pick`; raises CorruptFileError for a word that is not among the choices."""
    number = {word: i for i, word in enumerate(choices)}
    missing = next((value for value in values if value not in number), None)
    if missing is not None:
        raise CorruptFileError(f"{missing!r} is not one of {', '.join(map(repr, choices)) or 'no words'}.")
    return [number[value] for value in values]
