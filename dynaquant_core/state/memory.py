"""Where a tensor lies: two names for one tensor are told by its memory, whatever a wrapper calls them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

__all__ = ["Address", "address_of"]

#: Device, and where a tensor's first value lies.
Address = tuple[str, int]


def address_of(value: object) -> Address | None:
    """Where a tensor begins; tensors that share a buffer begin at different places in it.

    Returns:
        None for what has no memory of its own to be known by: no tensor, an empty one, one of another layout,
        on no device, or a subclass that wraps others.

    Example:
        >>> buffer = torch.zeros(4)
        >>> parts = buffer[:2].view(1, 2), buffer[2:], buffer[4:]
        >>> [address_of(part) == address_of(buffer) for part in parts], address_of(parts[2]) is None
        ([True, False, False], True)
    """
    if not isinstance(value, Tensor) or is_lazy(value) or value.is_meta:
        return None
    if value.is_nested or value.layout != torch.strided or not value.numel():
        return None
    start = value.data_ptr()
    return (str(value.device), start) if start else None
