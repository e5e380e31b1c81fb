"""The call of torch that is under way, where what it saves for backward must not be packed."""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dynaquant_core.memory.smaq.attention import ATTENTION, AttentionCall
from dynaquant_core.memory.smaq.entangled import (
    ENTANGLED,
    GRIDS,
    ORDERED,
    SOFTMAX,
    Everything,
    GridCall,
    Nothing,
    is_extreme,
    order_of,
)
from dynaquant_core.memory.smaq.foreign import is_foreign
from dynaquant_core.memory.smaq.gates import GATES, Rule, rule_of
from dynaquant_core.memory.smaq.norms import NORMS, NormCall

__all__ = ["Calls"]

#: Compiled, they save other tensors, or for other calls as well, of which nothing is known.  Dictionaries,
#: for the compiler of torch 2.7 does not look into a set of functions, and would take nothing of the model.
UNCOMPILED = dict.fromkeys(ATTENTION | ENTANGLED | SOFTMAX | frozenset(GATES))
BY_ORDER = dict.fromkeys(ORDERED)

#: What is known of a call, where it is not compiled.
KNOWN = NORMS | GRIDS | ORDERED


class Calls(TorchFunctionMode):
    """While it is entered, `spares` and `gate` know what is saved by a call that needs some of it as it is.

    It says so instead of changing saved-tensor hooks, so that activation checkpointing and a user's own
    hooks inside of the model go on seeing what they saw.  A compiled model calls attention, a softmax, what
    has `gates`, is `entangled` or `foreign` between its graphs: inside of one, what was packed would be made
    into something else in backward.  Norms stay part of graphs, and nothing is known of what they save there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: tuple[Any, ...] | None = None
        self._call: Needs | None = None
        self._uncompiled: Any = torch.compiler.disable(_noted)  # type: ignore[no-untyped-call]
        _leave_uncompiled()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls it; what `spares` wants to know of as it has to be called."""
        # A compiler does not find `Tensor.norm`, which is of Python, in a dictionary, and then ends on that.
        known = func in UNCOMPILED or (
            (func is Tensor.norm or func in BY_ORDER) and _is_known(func, args, kwargs or {})
        )
        if (known or is_foreign(func)) and _trains(args, kwargs or {}):
            return self._uncompiled(self, func, args, kwargs or {})
        if not torch.compiler.is_compiling() and func in KNOWN:
            return _noted(self, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def spares(self, tensor: Tensor) -> bool:
        """Whether a tensor that is being saved is one that the call under way needs as it is."""
        if self._told is None:
            return False
        if self._call is None:  # torch has looked at the arguments by now
            self._call = needs_of(*self._told)
        return self._call.needs(tensor)

    def gate(self) -> Rule | None:
        """Which kinds of values are in what is saved; None: the call under way asks for more than that."""
        return None if self._told is None else rule_of(*self._told)


class Needs(Protocol):
    """A call that is under way."""

    def needs(self, tensor: Tensor) -> bool:
        """Whether a tensor that it saves must stay exact."""
        ...


def needs_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Needs:
    """What is known of a call that torch has taken."""
    if func in ATTENTION:
        return AttentionCall.of(func, args, kwargs)
    if func in GRIDS:
        return GridCall.of(args, kwargs)
    if func in SOFTMAX:
        return Nothing()
    if func in GATES:
        return Everything() if rule_of(func, args, kwargs) is None else Nothing()
    if func in ENTANGLED or is_foreign(func) or (func in ORDERED and is_extreme(func, args, kwargs)):
        return Everything()
    return NormCall.of(func, args, kwargs)


def _is_known(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether something is known of what a norm of this order saves."""
    return is_extreme(func, args, kwargs) or order_of(args, kwargs) == 1


def _trains(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call may save anything; of positions and masks nothing is saved, and no graph is cut."""
    given = (*args, *kwargs.values())
    lists = [one for one in given if isinstance(one, (list, tuple))]
    return any(isinstance(one, Tensor) and one.requires_grad for some in (given, *lists) for one in some)


def _noted(mode: Calls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls it; a function, for a method of its own would hold the mode in a cycle."""
    mode._told = func, args, kwargs
    try:
        return func(*args, **kwargs)
    finally:
        mode._told = mode._call = None


@cache
def _leave_uncompiled() -> None:
    """Between two graphs torch calls a mode by itself, and would compile it for each operation anew."""
    # Torch has no public way that leaves it to be traced as a part of what calls it.
    skip = getattr(torch._dynamo.eval_frame, "skip_code", None)
    if skip is not None:
        skip(Calls.__torch_function__.__code__)
