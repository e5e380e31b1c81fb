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
from typing import Any, Final

from torch import Tensor, nn
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention

__all__ = ["ATTENTION", "AttentionCall"]

#: The functions that it goes through.
ATTENTION: Final = frozenset({scaled_dot_product_attention, multi_head_attention_forward})

#: Kernels fill the last dimension of what they are given up to a multiple of it.
FILLED: Final = 8

#: What both functions call their first arguments.
NAMES: Final = ("query", "key", "value")

SIGNATURE: Final = inspect.signature(multi_head_attention_forward)


@dataclass(frozen=True, slots=True)
class AttentionCall:
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
    def of(cls, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AttentionCall:
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
