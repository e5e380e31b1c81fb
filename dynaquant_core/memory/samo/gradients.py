"""From the dense gradient that autograd makes to what the optimizer sees, one layer at a time.

grad16 is what is kept of one backward pass, in the model's dtype; grad32, the ``grad`` of the compressed
parameter,
is what passes have added up to, unscaled.  So ``zero_grad``, clipping, `torch.amp.GradScaler` and closures
work on the optimizer's parameters as they always do.  In float32 both are the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dynaquant_core.errors import GradientError
from dynaquant_core.memory.samo.slots import Slot

__all__ = ["Collector"]


@dataclass(frozen=True, slots=True)
class Collector:
    """Moves gradients; holds nothing itself.

    Args:
        scale: what the loss was multiplied with; grad16 is scaled, grad32 is not.
    """

    scale: float = 1.0
    _factors: dict[torch.device, Tensor] = field(default_factory=dict)

    def collect(self, slot: Slot, *, reducing: bool) -> None:
        """Takes a dense gradient from the model's parameter and frees it.

        Args:
            slot: whose parameter has just got its gradient.
            reducing: grad16 is averaged over ranks next, so it must hold all that was accumulated, and grad32
                is made by `deliver`.

        Raises:
            GradientError: it has none any more.
        """
        if slot.own:
            held = slot.param.grad
            if reducing and held is not None and held.layout != torch.strided:
                slot.param.grad = held.to_dense()  # buckets are dense
            self.load(slot)
            return
        dense, slot.param.grad = slot.param.grad, None
        if dense is None:
            raise GradientError(
                f"samo: the gradient of {slot.name!r} was gone before SAMO took it, freed by another hook "
                "or taken by another thread's backward through the same parameters; zero_grad() and make "
                "the gradients again: one backward after the other, and no hook that frees them."
            )
        self.compress(slot, dense, reducing=reducing)
        if reducing:
            self.load(slot)

    def compress(self, slot: Slot, dense: Tensor, *, reducing: bool = False) -> None:
        """The same of a dense gradient that was taken; grad16 is not loaded again."""
        if dense.layout != torch.strided:
            dense = dense.to_dense()
        if slot.param.dtype == torch.float32:
            self._in_place(slot, dense)
        else:
            self._in_half(slot, dense, reducing=reducing)

    def load(self, slot: Slot) -> bool:
        """Puts what was accumulated into grad16; False: there is nothing."""
        held, gradient = slot.master.grad, slot.gradient
        assert gradient is not None
        if held is None:
            return False
        if slot.param.dtype != torch.float32:
            gradient.copy_(held if self.scale == 1 else held * self.scale)
        elif held.data_ptr() != gradient.data_ptr():
            gradient.copy_(held)
            slot.master.grad = gradient
        return True

    def deliver(self, slot: Slot) -> None:
        """grad32 = what is in grad16, after the ranks' average."""
        assert slot.gradient is not None
        if slot.param.dtype == torch.float32:
            slot.master.grad = slot.gradient
        elif slot.master.grad is None:
            slot.master.grad = self._unscaled(slot.gradient)
        else:
            slot.master.grad.copy_(self._unscaled(slot.gradient))

    def _in_place(self, slot: Slot, dense: Tensor) -> None:
        held = slot.master.grad
        if held is not None:
            held.add_(slot.gather(dense), alpha=1 / self.scale)
            return
        gradient = slot.gradient
        assert gradient is not None
        if slot.index is None and self.scale != 1 and dense.dtype == torch.float32:
            torch.mul(dense, 1 / self.scale, out=gradient)
        else:
            slot.take(dense)
            if self.scale != 1:
                gradient.mul_(1 / self.scale)
        slot.master.grad = gradient

    def _in_half(self, slot: Slot, dense: Tensor, *, reducing: bool) -> None:
        gradient = slot.gradient
        assert gradient is not None
        alike = dense.dtype == gradient.dtype and dense.stride() == gradient.stride()
        if slot.index is None and alike and not reducing:
            gradient = dense  # nobody averages it, and it is what the copy would be
        else:
            slot.take(dense)
        held = slot.master.grad
        if held is not None:
            held.add_(gradient, alpha=1 / self.scale)
        elif not reducing:
            slot.master.grad = self._unscaled(gradient)

    def _unscaled(self, gradient: Tensor) -> Tensor:
        if self.scale == 1:
            return gradient.to(torch.float32)
        if gradient.device.type == "cpu" or gradient.dim() == 0:  # a processor casts apart all the same
            return gradient.to(torch.float32).mul_(1 / self.scale)
        return self._product(gradient)

    def _product(self, gradient: Tensor) -> Tensor:
        """The same bits in one launch: a factor of one dimension makes torch multiply in float32."""
        factor = self._factors.get(gradient.device)
        if factor is None:
            factor = torch.tensor([1 / self.scale], dtype=torch.float32, device=gradient.device)
            self._factors[gradient.device] = factor
        return torch.mul(gradient, factor)
