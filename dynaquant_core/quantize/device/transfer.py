"""Codes on their way between host memory and a device; a byte a weight, so a quarter of what weights take."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["bring", "send"]


def send(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array on a device; what torch cannot look at without a warning is copied before."""
    whole = np.ascontiguousarray(array)
    return torch.from_numpy(whole if whole.flags.writeable else whole.copy()).to(device)


def bring(tensor: Tensor, into: NDArray[Any]) -> None:
    """Writes a device's tensor [n] into an array of its size and dtype, when the device has done its work."""
    torch.from_numpy(into).copy_(tensor)
