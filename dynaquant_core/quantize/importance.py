"""How much a weight matters: magnitude and sensitivity (paper sec. 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["magnitude", "sensitivity"]


def magnitude(weights: Tensor) -> Tensor:
    """Scores weights by their size, I_m(w) = |w| (paper 4.1).

    Args:
        weights: floating tensor of any shape and device.

    Returns:
        float32 tensor of the same shape and device.

    Example:
        >>> magnitude(torch.tensor([-2.0, 0.5])).tolist()
        [2.0, 0.5]
    """
    return weights.detach().to(torch.float32).abs()


def sensitivity(weights: Tensor, gradient: Tensor) -> Tensor:
    """Scores weights by how much the loss would change without them, I_s(w) = |g w| (paper 4.1).

    Args:
        weights: floating tensor of any shape and device.
        gradient: EMA of the gradient, same shape and device; both are rounded to float32 first.

    Returns:
        float32 tensor of the same shape; infinite where the product overflows, NaN where the gradient is.

    Example:
        >>> sensitivity(torch.tensor([-2.0, 0.5]), torch.tensor([0.25, 4.0])).tolist()
        [0.5, 2.0]
    """
    return (weights.detach().to(torch.float32) * gradient.detach().to(torch.float32)).abs()
