"""What SAMO leaves on a model's parameters: a sign that the optimizer holds others in their place."""

from __future__ import annotations

from typing import Final

from torch import nn

__all__ = ["MARK", "is_compressed"]

#: An attribute of each parameter of a model that is wrapped.
MARK: Final = "_dynaquant_samo"


def is_compressed(model: nn.Module) -> bool:
    """Whether a model is under `samo.wrap`.

    Example:
        >>> is_compressed(nn.Linear(2, 2))
        False
    """
    return any(hasattr(parameter, MARK) for parameter in model.parameters())
