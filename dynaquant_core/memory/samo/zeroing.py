"""``model.zero_grad()`` for a model whose gradients lie elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType

from torch import nn

from dynaquant_core.memory.samo.slots import Slot

__all__ = ["Zeroing"]

NAME = "zero_grad"


class Zeroing:
    """Makes a model's ``zero_grad`` clear compressed gradients too, as many loops and the HF Trainer call it.

    Args:
        model: the wrapped one; its class is left alone, and so are its copies.
        slots: whose gradients are cleared.
    """

    def __init__(self, model: nn.Module, slots: Sequence[Slot]) -> None:
        self._model = model
        self._former = vars(model).get(NAME)

        def zero_grad(this: nn.Module, set_to_none: bool = True) -> None:
            if self._former is None:
                type(this).zero_grad(this, set_to_none)
            else:
                self._former(set_to_none)
            if this is self._model:  # a deep copy brings this method along and has no part in the training
                clear(slots, set_to_none=set_to_none)

        vars(model)[NAME] = MethodType(zero_grad, model)

    def undo(self) -> None:
        """Gives the model its own ``zero_grad`` back."""
        vars(self._model).pop(NAME, None)
        if self._former is not None:
            vars(self._model)[NAME] = self._former


def clear(slots: Sequence[Slot], *, set_to_none: bool) -> None:
    """Clears the gradients of compressed parameters."""
    for slot in slots:
        gradient = slot.master.grad
        if gradient is None:
            continue
        if set_to_none:
            slot.master.grad = None
        else:
            gradient.detach().zero_()
