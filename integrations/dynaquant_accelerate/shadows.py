"""Methods of single objects put aside for the length of one call: no class is touched."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

__all__ = ["SAVE", "STUB", "giving_stubs", "ignoring_stubs", "is_stub", "new_stub", "shadowed"]

#: What every state says that Accelerate writes in place of one that DynaQuant holds.
STUB: Final = "the state lies in the DynaQuant checkpoint beside this file"

#: Which save it is of: in a stub, and in the note of the checkpoint beside it.
SAVE: Final = "save"


def new_stub(step: int) -> dict[str, Any]:
    """What Accelerate is to write in this save, of this step.

    Example:
        >>> stub = new_stub(3)
        >>> is_stub(stub), is_stub({"step": 3}), stub["step"]
        (True, False, 3)
    """
    return {"dynaquant": STUB, "step": step, SAVE: uuid.uuid4().hex}


def is_stub(state: Any) -> bool:
    """Whether a state is one of those, of whatever save."""
    return isinstance(state, Mapping) and state.get("dynaquant") == STUB


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
def giving_stubs(objects: Iterable[Any], stub: Mapping[str, Any]) -> Iterator[None]:
    """Inside the context the objects give ``stub`` as their state."""
    with ExitStack() as stack:
        for obj in objects:
            stack.enter_context(shadowed(obj, "state_dict", lambda *_, **__: dict(stub)))
        yield


@contextmanager
def ignoring_stubs(objects: Iterable[Any]) -> Iterator[None]:
    """Inside the context the objects do nothing when they are given a stub as their state."""
    with ExitStack() as stack:
        for obj in objects:
            stack.enter_context(shadowed(obj, "load_state_dict", _ignoring_stub(obj.load_state_dict)))
        yield


def _ignoring_stub(load: Callable[..., Any]) -> Callable[..., Any]:
    def load_state_dict(state: Any, *args: Any, **kwargs: Any) -> Any:
        return None if is_stub(state) else load(state, *args, **kwargs)

    return load_state_dict
