"""What a process counts within its process group, and from the beginning in the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from torch import distributed

__all__ = ["OfGroup"]

T = TypeVar("T")


class OfGroup(Generic[T]):
    """A value of this process for each process group that it is in, one after the other.

    What ranks count is the same on all of them only since their group was set up: one may have been away
    before, or be a new process.

    Args:
        make: makes the first value in a group.

    Example:
        >>> count = OfGroup(lambda: [0])
        >>> for _ in range(2):
        ...     store = distributed.HashStore()
        ...     distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        ...     count()[0] += 1
        ...     count()
        ...     distributed.destroy_process_group()
        [1]
        [1]
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: WeakKeyDictionary[Any, T] = WeakKeyDictionary()

    def __call__(self) -> T:
        """That of the group of now."""
        group = distributed.group.WORLD
        if group not in self._values:
            self._values[group] = self._make()
        return self._values[group]
