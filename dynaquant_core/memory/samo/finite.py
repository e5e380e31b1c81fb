"""Whether gradients hold a NaN or an infinity, in one pass over them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

__all__ = ["all_finite"]

#: Summed in their own dtype; others in float32, in which no sum of them overflows so soon.
WIDE = (torch.float32, torch.float64)


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether every value is a number: a NaN or an infinity makes every sum that it is in one as well.

    A sum of finite values may overflow too, so one that is not finite is looked at value by value.  Torch's
    own norms take tens of times as long on a processor; on a device what looks for `torch.amp.GradScaler`
    starts the fewest kernels.

    Args:
        tensors: floating, of any devices.

    Example:
        >>> huge = torch.full((2,), 3e38)
        >>> all_finite([huge]), all_finite([huge, torch.tensor([1.0, float("nan")])]), all_finite([])
        (True, False, True)
    """
    if not tensors:
        return True
    device = tensors[0].device
    if device.type == "cuda" and _plain(tensors):
        return not bool(found_bad(tensors))
    on_devices = all(one.device.type != "cpu" for one in tensors)
    total = get_total_norm(tensors) if on_devices else sum_of_sums(tensors)
    if math.isfinite(float(total)):  # one answer to wait for, whatever the number of tensors
        return True
    return all(bool(torch.isfinite(one).all()) for one in tensors)


def found_bad(tensors: Sequence[Tensor]) -> Tensor:
    """float32[1]: above zero where a value is none; in a launch for many tensors, which keep their bits.

    Args:
        tensors: float32, without gaps, on one device.
    """
    found = torch.zeros(1, dtype=torch.float32, device=tensors[0].device)
    torch._amp_foreach_non_finite_check_and_unscale_(list(tensors), found, torch.ones_like(found))
    return found


def _plain(tensors: Sequence[Tensor]) -> bool:
    """Whether `found_bad` may look: it writes every value where it was, so each needs memory of its own."""
    found = {(one.dtype, one.device, one.is_contiguous(), one.requires_grad) for one in tensors}
    return found == {(torch.float32, tensors[0].device, True, False)}


def sum_of_sums(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of all values, in float64 but for each tensor's own."""
    sums = [one.sum(dtype=one.dtype if one.dtype in WIDE else torch.float32) for one in tensors]
    first = sums[0]
    if all(one.dtype == first.dtype and one.device == first.device for one in sums):
        return torch.stack(sums).sum(dtype=torch.float64)
    return torch.stack([one.to(first.device, torch.float64) for one in sums]).sum()
