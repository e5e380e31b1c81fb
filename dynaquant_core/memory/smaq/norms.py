"""Norms, whose saved statistics must stay exact: means and deviations, one for many values of a map.

The backward pass scales whole channels, groups or rows by 1 / deviation.  There are few of them, and one of
what is nearly constant (a blank image, a dead channel, padding) is hundreds of times the others: packed, its
levels are so coarse that all the others are wrong.  4 blank images of 32 left a group norm's gradients 83%
off.  Layer norms save theirs as one value a row, which `packing.is_one_a_row` knows by its shape too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["NORMS", "NormCall"]

#: The functions that they go through.
NORMS: Final = frozenset(
    {
        functional.batch_norm,
        functional.group_norm,
        functional.instance_norm,
        functional.layer_norm,
        functional.rms_norm,
        torch.batch_norm,
        torch.group_norm,
        torch.instance_norm,
        torch.layer_norm,
        torch.native_batch_norm,
        torch.native_group_norm,
        torch.native_layer_norm,
        torch.rms_norm,
        torch.std,
        torch.std_mean,
        torch.var_mean,
        Tensor.std,
    }
)


@dataclass(frozen=True, slots=True)
class NormCall:
    """What a call of a norm was given.

    Args:
        size: values of its map.
    """

    size: int

    @classmethod
    def of(cls, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NormCall:  # noqa: ARG003
        """A call that torch has taken; its map is the largest of the tensors that it was given."""
        return cls(max(one.numel() for one in (*args, *kwargs.values()) if isinstance(one, Tensor)))

    def needs(self, tensor: Tensor) -> bool:
        """Whether a tensor that it saves must stay exact: all that is smaller than the map."""
        return tensor.numel() < self.size
