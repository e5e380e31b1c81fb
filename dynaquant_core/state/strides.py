"""The order in which a tensor's memory runs through its dimensions (channels last, a transposed weight).

Values are stored in row-major order whatever that is.  But an optimizer's fused kernels walk a parameter and
its moments side by side through memory, so what is read back must run as what was saved did.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["in_memory_order", "like_strides", "memory_order", "viewed_like"]


def memory_order(tensor: Tensor) -> list[int] | None:
    """Dimensions from the slowest to the fastest in memory.

    None for row-major order, and where memory has gaps or overlaps: such a tensor comes back row-major.

    Example:
        >>> import torch
        >>> memory_order(torch.zeros(2, 3)), memory_order(torch.zeros(2, 3).t())
        (None, [1, 0])
    """
    if tensor.dim() < 2 or tensor.is_contiguous():
        return None
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    return order if tensor.permute(order).is_contiguous() else None


def in_memory_order(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """The same values with their memory in an order; the tensor itself where it is so already.

    Args:
        tensor: any.
        order: a permutation of its dimensions, as `memory_order` gives it.

    Example:
        >>> import torch
        >>> in_memory_order(torch.zeros(2, 3), [1, 0]).stride()
        (1, 2)
    """
    permuted = tensor.permute(*order)
    if permuted.is_contiguous():
        return tensor
    return permuted.contiguous().permute(*_places(order))


def like_strides(tensor: Tensor, model: Tensor) -> Tensor:
    """The same values with the memory order of another tensor of its shape."""
    order = memory_order(model)
    return tensor.contiguous() if order is None else in_memory_order(tensor, order)


def viewed_like(flat: Tensor, model: Tensor) -> Tensor:
    """Contiguous memory seen in the shape and the memory order of another tensor.

    Args:
        flat: (n,), as many elements as ``model`` has.
        model: any; where its memory has gaps or overlaps, the view is row-major.

    Example:
        >>> import torch
        >>> viewed_like(torch.zeros(6), torch.zeros(2, 3).t()).stride()
        (1, 3)
    """
    order = memory_order(model)
    if order is None:
        return flat.view(model.shape)
    return flat.view([model.shape[dim] for dim in order]).permute(*_places(order))


def _places(order: Sequence[int]) -> list[int]:
    """Where each dimension stands in an order: the permutation that undoes it."""
    return sorted(range(len(order)), key=order.__getitem__)
