"""Values that are worked out when they are first asked for.

`functools.cached_property` holds one lock for all instances before Python 3.12: a process forked while a save
in the background is inside would wait for it for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["lazy"]

Value = TypeVar("Value")


class lazy(Generic[Value]):  # noqa: N801 - reads as `property` does
    """A property that is worked out once an object.

    Of threads that ask at once each may work it out; all get what the first one found.

    Example:
        >>> class Circle:
        ...     @lazy
        ...     def area(self):
        ...         print("worked out")
        ...         return 3
        >>> circle = Circle()
        >>> circle.area + circle.area
        worked out
        6
    """

    def __init__(self, function: Callable[[Any], Value]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object, owner: type) -> lazy[Value] | Value:
        if instance is None:
            return self
        value: Value = instance.__dict__.setdefault(self.name, self.function(instance))
        return value
