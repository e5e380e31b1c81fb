"""The call of torch that is under way, where what it saves for backward must not be packed."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dynaquant_core.memory.smaq.attention import ATTENTION, AttentionCall
from dynaquant_core.memory.smaq.norms import NORMS, NormCall

__all__ = ["Calls"]


class Calls(TorchFunctionMode):
    """While it is entered, `spares` knows what is saved by a call of attention or of a norm.

    It says so instead of changing saved-tensor hooks, so that activation checkpointing and a user's own
    hooks inside of the model go on seeing what they saw.  A compiled model calls attention between its
    graphs: inside of one, queries would be made again in backward from packed maps.  Norms stay part of
    graphs, and nothing is known of what they save there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: tuple[Any, ...] | None = None
        self._call: AttentionCall | NormCall | None = None
        self._uncompiled: Any = torch.compiler.disable(_noted)  # type: ignore[no-untyped-call]
        _leave_uncompiled()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls it; attention and norms as `spares` wants to know."""
        if func in ATTENTION:
            return self._uncompiled(self, func, args, kwargs or {})
        if func in NORMS and not torch.compiler.is_compiling():
            return _noted(self, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def spares(self, tensor: Tensor) -> bool:
        """Whether a tensor that is being saved is one that the call under way needs as it is."""
        if self._told is None:
            return False
        if self._call is None:  # torch has looked at the arguments by now
            kind = AttentionCall if self._told[0] in ATTENTION else NormCall
            self._call = kind.of(*self._told)
        return self._call.needs(tensor)


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
