"""Hooks on optimizers that are taken off again when their owner is gone, and never in the middle of a step.

The garbage collector may find an owner gone at any time, also while an optimizer goes through its hooks.
Torch goes through the dictionary itself, so taking one out then would end the user's step with "OrderedDict
mutated during iteration".
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.optim import Optimizer

__all__ = ["OwnedHooks", "has_hooks", "leave", "take_off_what_was_left", "untraced", "watched"]


class Removable(Protocol):
    """What torch returns where a hook is registered."""

    def remove(self) -> None:
        """Takes the hook off."""
        ...


#: Wrappers around an optimizer, one in another; some may hold themselves.
DEEPEST = 8

#: Of owners that are gone; filled by the garbage collector.
_left: list[Removable] = []


class OwnedHooks:
    """Hooks that were registered for an owner.  Whoever registers takes off what others have left.

    A hook has to hold its owner weakly and do nothing once it is gone: until the next registration it is
    still called.

    Args:
        owner: whom the hooks tell.
        handles: what registering them returned.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        >>> hooks = OwnedHooks(optimizer, [optimizer.register_step_post_hook(lambda *_: None)])
        >>> hooks.remove()
        >>> len(optimizer._optimizer_step_post_hooks)
        0
    """

    def __init__(self, owner: object, handles: Sequence[Removable]) -> None:
        take_off_what_was_left()
        self._gone = weakref.finalize(owner, leave, *handles)
        self._gone.atexit = False
        self._handles = handles

    def remove(self) -> None:
        """Takes them off now; again: does nothing.  Not for the middle of a step."""
        self._gone.detach()
        for handle in self._handles:
            handle.remove()


def leave(*handles: Removable) -> None:
    """Has hooks taken off by whoever registers next; at any time, by the garbage collector too."""
    _left.extend(handles)


def take_off_what_was_left() -> None:
    """Not for the middle of a step, nor of a forward pass."""
    with contextlib.suppress(IndexError):
        while True:
            _left.pop().remove()


def untraced(hook: Callable[..., None]) -> Callable[..., None]:
    """The hook, which a compiled step runs beside its graphs instead of making graphs of it.

    The compiler's import takes a second: where nobody has imported it yet the hook stays as it is.

    Example:
        >>> untraced(print).__name__
        'print'
    """
    if "torch._dynamo" not in sys.modules:
        return hook
    alone: Callable[..., None] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return alone


def has_hooks(optimizer: Optimizer) -> bool:
    """Whether hooks can be registered: not where a wrapper never calls the ``__init__`` of `Optimizer`."""
    return all(hasattr(optimizer, f"_optimizer_step_{when}_hooks") for when in ("pre", "post"))


def watched(optimizer: Optimizer) -> Optimizer | None:
    """The one whose steps tell of an optimizer's: itself, or the one that it wraps; None: nothing tells.

    Example:
        >>> class Wrapper(Optimizer):
        ...     def __init__(self, optimizer):
        ...         self.optimizer, self.param_groups = optimizer, optimizer.param_groups
        >>> inner = torch.optim.SGD([torch.zeros(1)])
        >>> watched(inner) is watched(Wrapper(Wrapper(inner))) is inner
        True
    """
    inner: object = optimizer
    for _ in range(DEEPEST):
        if not isinstance(inner, Optimizer):
            return None
        if has_hooks(inner):
            return inner
        inner = getattr(inner, "optimizer", None)
    return None
