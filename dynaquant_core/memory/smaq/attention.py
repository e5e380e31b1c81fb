"""Attention, whose saved tensors must fit together: they are left as they are.

The backward pass of a fused kernel makes the probabilities again, exp(q k - l), where l is the logarithm of
what forward divided by.  Packed each for itself, q, k and l no longer cancel, and what is left of them stands
in an exponent: gradients 1e17 times too large, and infinite ones, were measured.  So what attention saves of
queries, keys, values, masks, outputs and logarithms stays exact; only matrices of scores, which the unfused
way keeps as plain probabilities, are packed as other maps are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

__all__ = ["Attention"]

#: Kernels fill the last dimension of what they are given up to a multiple of it.
FILLED: Final = 8

#: What both functions call their first arguments.
NAMES: Final = ("query", "key", "value")

SIGNATURE: Final = inspect.signature(multi_head_attention_forward)


@dataclass(frozen=True, slots=True)
class Call:
    """What a call of attention was given, and what matrix of scores it may make.

    Args:
        given: addresses of its tensors.
        largest: values of the largest of queries, keys and values.
        rows, columns: how many queries and keys there are.
        head: values of a query of one head.
    """

    given: frozenset[int]
    largest: int
    rows: int
    columns: int
    head: int

    @classmethod
    def of(cls, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """A call of either function that torch has taken."""
        tensors = [one for one in (*args, *kwargs.values()) if type(one) in (Tensor, nn.Parameter)]
        given = frozenset(one.untyped_storage().data_ptr() for one in tensors)
        if func is scaled_dot_product_attention:
            query, key, value = (*args, *(kwargs[name] for name in NAMES[len(args) :]))[:3]
            rows, columns, head = query.shape[-2], key.shape[-2], max(query.shape[-1], value.shape[-1])
        else:  # the sequence comes first
            bound = SIGNATURE.bind(*args, **kwargs).arguments
            query, key, value = (bound[name] for name in NAMES)
            rows, columns, head = query.shape[0], key.shape[0], query.shape[-1] // bound["num_heads"]
        return cls(given, max(one.numel() for one in (query, key, value)), rows, columns, head)

    def needs(self, tensor: Tensor) -> bool:
        """Whether a tensor that it saves must stay exact: all but a matrix of scores.

        A matrix whose shape could be that of filled queries counts as them.
        """
        shaped = tuple(tensor.shape[-2:]) == (self.rows, self.columns)
        scores = shaped and self.columns >= self.head + FILLED and tensor.numel() > self.largest
        return not scores or tensor.untyped_storage().data_ptr() in self.given


class Attention(TorchFunctionMode):
    """While it is entered, `spares` knows what is saved by a call of attention.

    It says so instead of changing saved-tensor hooks, so that activation checkpointing and a user's own
    hooks inside of the model go on seeing what they saw.  A compiled model calls attention between its
    graphs: inside of one, queries would be made again in backward from packed maps.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: tuple[Any, ...] | None = None
        self._call: Call | None = None
        self._noted: Any = torch.compiler.disable(_noted)  # type: ignore[no-untyped-call]
        _leave_uncompiled()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls it; attention as `spares` wants to know."""
        if func is scaled_dot_product_attention or func is multi_head_attention_forward:
            return self._noted(self, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def spares(self, tensor: Tensor) -> bool:
        """Whether a tensor that is being saved is one that attention needs as it is."""
        if self._told is None:
            return False
        self._call = self._call or Call.of(*self._told)  # torch has looked at the arguments by now
        return self._call.needs(tensor)


def _noted(mode: Attention, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls attention; a function, for a method of its own would hold the mode in a cycle."""
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
        skip(Attention.__torch_function__.__code__)
