"""A tensor that may have to be put back: the object, where it lies in memory, and its bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dynaquant_core.state import bytes_of

__all__ = ["Held", "same_bits", "write"]


@dataclass(frozen=True, slots=True)
class Held:
    """One tensor as it is now.

    Args:
        tensor: the object itself.
        place: another over the same memory, which stays there and keeps its size.
        value: a copy.

    Example:
        >>> tensor = torch.ones(2)
        >>> held = Held.of(tensor)
        >>> _ = tensor.resize_(3).zero_()
        >>> held.put_back()
        >>> tensor
        tensor([1., 1.])
    """

    tensor: Tensor
    place: Tensor
    value: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Held:
        """The tensor, with a copy where it lies."""
        place = tensor.detach()
        return cls(tensor, place, place.clone())

    @property
    def changed(self) -> bool:
        """Whether it has another size or other bits now."""
        return self.tensor.shape != self.value.shape or not same_bits(self.tensor, self.value)

    def put_back(self) -> None:
        """Gives it its size and bits again; what has them is not written."""
        if self.tensor.shape != self.value.shape:  # resized in place
            self.tensor.data = self.place
        if self.changed:
            with torch.no_grad():
                write(self.tensor, self.value)


def write(target: Tensor, value: Tensor) -> None:
    """Copies ``value`` into ``target``; where `Tensor.expand` gave many elements one place, the first counts.

    Example:
        >>> rows = torch.zeros(1, 2).expand(3, 2)
        >>> write(rows, torch.ones(3, 2))
        >>> rows.sum().item()
        6.0
    """
    if target.layout == torch.strided:
        for dim, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
            if stride == 0 and size > 1:  # torch refuses to write there
                target, value = target.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    target.copy_(value)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bits (so NaN equals NaN, -0 is not 0)."""
    if left.layout != torch.strided or right.layout != torch.strided:
        return False
    return torch.equal(bytes_of(left), bytes_of(right))
