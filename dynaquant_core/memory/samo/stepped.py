"""Whether an optimizer's step is one of the compressed weights: one around another may hold its own list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from dynaquant_core.config import require
from dynaquant_core.errors import GradientError
from dynaquant_core.memory.samo.guard import values_of
from dynaquant_core.memory.samo.slots import Masters, Slot

__all__ = ["Stepped", "inside", "require_none_inside", "states_of"]

#: Steps in a row that may move nothing: some optimizers only look at their first gradients.
PATIENCE: Final = 8


def require_none_inside(optimizer: Optimizer) -> None:
    """Refuses an optimizer that steps another one with lists of parameters of its own.

    The weights that SAMO puts into the groups of the one outside would never come to the one inside, which
    goes on with dense parameters that have no gradients.  Where both have the same groups, both get them.

    Raises:
        ConfigError: names both; nothing was changed.
    """
    lists = {id(group["params"]) for group in optimizer.param_groups}
    held = {one for group in optimizer.param_groups for one in group["params"]}
    outside = type(optimizer).__name__
    for one in inside(optimizer):
        apart = [group["params"] for group in one.param_groups if id(group["params"]) not in lists]
        require(
            held.isdisjoint(parameter for params in apart for parameter in params),
            f"samo: {outside} steps an {type(one).__name__} with a list of parameters of its own, which "
            f"would go on with the dense ones and train nothing; have {outside} share its param_groups "
            "(self.param_groups = inner.param_groups), or train with the optimizer inside.",
        )


def states_of(optimizer: Optimizer) -> list[dict[Any, Any]]:
    """Its state, and what optimizers inside it that share its groups remember apart from it."""
    found: list[dict[Any, Any]] = []
    for one in (optimizer, *inside(optimizer)):
        if all(one.state is not other for other in found):
            found.append(one.state)
    return found


def inside(optimizer: Optimizer) -> list[Optimizer]:
    """Optimizers that an optimizer holds, and those that they hold."""
    found, waiting = [optimizer], [optimizer]
    while waiting:
        for one in _held(waiting.pop()):
            if all(one is not other for other in found):
                found.append(one)
                waiting.append(one)
    return found[1:]


def _held(optimizer: Optimizer) -> Iterator[Optimizer]:
    for name, value in vars(optimizer).items():
        if name == "state":  # large, and there are none in it
            continue
        some = value.values() if isinstance(value, Mapping) else value if _is_list(value) else (value,)
        yield from (one for one in some if isinstance(one, Optimizer))


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


class Stepped:
    """Looks at steps until one has moved compressed weights.

    Their bits tell, not torch's count of writes, which a fused step and one through ``.data`` leave alone.

    Args:
        optimizer: over the slots' masters.
        slots: those that have a master of their own.
        masters: the memory behind them.
    """

    def __init__(self, optimizer: Optimizer, slots: Sequence[Slot], masters: Sequence[Masters]) -> None:
        self._optimizer, self._slots, self._masters = optimizer, slots, masters
        self._sure, self._still = not slots, 0
        self._sums: list[Tensor] = []

    def before(self) -> None:
        """Remembers what a step begins with."""
        if not self._sure:
            self._sums = self._now()

    def after(self) -> None:
        """Looks whether it has moved anything, where it had to.

        Raises:
            GradientError: that many steps have not.
        """
        if self._sure:
            return
        self._sure = not all(map(torch.equal, self._sums, self._now()))
        if self._sure or not self._had_to():
            return
        self._still += 1
        if self._still >= PATIENCE:
            raise GradientError(
                f"samo: {PATIENCE} steps have left every compressed weight as it was, though there are "
                f"gradients and a learning rate above zero: {type(self._optimizer).__name__}.step() leaves "
                "its param_groups alone and steps something else (an optimizer inside it, weights that it "
                "keeps), so nothing is trained; wrap with the optimizer that steps what is in its groups."
            )

    def _now(self) -> list[Tensor]:
        """A sum of all bits of each device's weights; one pass, and no copy."""
        return [one.flat.view(torch.int32).sum() for one in self._masters]

    def _had_to(self) -> bool:
        overflowed = getattr(self._optimizer, "found_inf", None)  # told to a fused step by a gradient scaler
        if isinstance(overflowed, Tensor) and bool(overflowed):
            return False
        compressed = {slot.master for slot in self._slots}
        for group in self._optimizer.param_groups:
            rate = group.get("lr")
            if rate is None or float(rate) > 0:
                for one in compressed.intersection(group["params"]):
                    if one.grad is not None and bool(values_of(one.grad).any()):
                        return True
        return False
