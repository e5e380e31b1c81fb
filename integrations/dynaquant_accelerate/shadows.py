"""Methods of single objects put aside for the length of one call: no class is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

__all__ = ["STUB", "giving_stubs", "ignoring_stubs", "shadowed"]

#: What Accelerate writes in place of a state that DynaQuant holds.
STUB: Final = {"dynaquant": "the state lies in the DynaQuant checkpoint beside this file"}


@contextmanager
def shadowed(obj: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """``obj.name`` is ``replacement`` inside the context and what it was after it, whatever happens.

    Example:
        >>> from collections import UserDict
        >>> held = UserDict(a=1)
        >>> with shadowed(held, "copy", lambda: "shadow"):
        ...     held.copy()
        'shadow'
        >>> held.copy()
        {'a': 1}
    """
    own = vars(obj)
    before = {name: own[name]} if name in own else {}
    setattr(obj, name, replacement)
    try:
        yield
    finally:
        delattr(obj, name)
        own.update(before)


@contextmanager
def giving_stubs(objects: Iterable[Any]) -> Iterator[None]:
    """Inside the context the objects give `STUB` as their state."""
    with ExitStack() as stack:
        for obj in objects:
            stack.enter_context(shadowed(obj, "state_dict", _give_stub))
        yield


@contextmanager
def ignoring_stubs(objects: Iterable[Any]) -> Iterator[None]:
    """Inside the context the objects do nothing when they are given `STUB` as their state."""
    with ExitStack() as stack:
        for obj in objects:
            stack.enter_context(shadowed(obj, "load_state_dict", _ignoring_stub(obj.load_state_dict)))
        yield


def _give_stub(*_: Any, **__: Any) -> dict[str, str]:
    return dict(STUB)


def _ignoring_stub(load: Callable[..., Any]) -> Callable[..., Any]:
    def load_state_dict(state: Any, *args: Any, **kwargs: Any) -> Any:
        return None if state == STUB else load(state, *args, **kwargs)

    return load_state_dict
