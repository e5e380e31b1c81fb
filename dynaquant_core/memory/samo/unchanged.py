"""Whether a model is still what was wrapped, asked at every step: quickly where it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from dynaquant_core.memory.samo.guard import require_same
from dynaquant_core.memory.samo.slots import Slot

__all__ = ["Unchanged"]


class Unchanged:
    """Remembers how a model looked when `guard.require_same` had nothing against it.

    While every module holds the same modules and parameters, its names are the same; so only what looks
    otherwise is walked through by name again.

    Args:
        model: the wrapped one.
        slots: its trained parameters.
    """

    def __init__(self, model: nn.Module, slots: Sequence[Slot]) -> None:
        self._model, self._slots = model, slots
        self._remember()

    def require(self) -> None:
        """Refuses what `guard.require_same` refuses.

        Raises:
            StateMismatchError: a parameter was replaced, cast, moved or laid out in another order.
        """
        if not (self._same_tree() and self._same_layers()):
            require_same(self._model, self._slots)
            self._remember()

    def _remember(self) -> None:
        modules = list(self._model.modules())
        tables: list[dict[str, Any]] = [one for each in modules for one in (each._modules, each._parameters)]
        self._modules = [(module, module._modules, module._parameters) for module in modules]
        self._sizes = [(table, len(table)) for table in tables]
        self._held = [(table, name, one) for table in tables for name, one in table.items()]
        params = [slot.param for slot in self._slots]
        self._looks = [(one, one.shape, one.stride(), one.dtype, one.device) for one in params]

    def _same_tree(self) -> bool:
        for module, modules, parameters in self._modules:
            if module._modules is not modules or module._parameters is not parameters:
                return False
        return all(len(table) == size for table, size in self._sizes) and all(
            table.get(name) is one for table, name, one in self._held
        )

    def _same_layers(self) -> bool:
        for one, shape, stride, dtype, device in self._looks:
            if one.stride() != stride or one.shape != shape or one.dtype != dtype or one.device != device:
                return False
        return True
