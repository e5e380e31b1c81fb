"""What a step has sent, until it is known to count: a gradient scaler may skip it, for one optimizer or all.

The scaler decides optimizer by optimizer, and says to nobody which it has skipped.  Its scale goes down where
it has skipped any.  Which parameters were stepped all the same is told by torch, which announces every step
of an optimizer; where a wrapper writes to parameters in its place, they have another version.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from dynaquant_core.comm.two_bit.layout import Layout
from dynaquant_core.hooks import OwnedHooks

__all__ = ["Scaler", "Sent", "Steps"]


#: A version that no parameter has.
NEVER = -1


class Scaler(Protocol):
    """What is used of a gradient scaler, such as `torch.amp.GradScaler`."""

    def get_scale(self) -> float:
        """What the loss is multiplied by."""
        ...

    def is_enabled(self) -> bool:
        """Whether it is multiplied at all."""
        ...


@final
@dataclass(slots=True)
class Sent:
    """What one bucket has sent in this step.

    Args:
        layout: of the bucket.
        residual: float32[n], live.
        packed: uint8[layout.bytes].
        parts: each parameter, its version when it was sent, where it begins in the bucket, its elements.
        rounding: float32[n], what this rank has taken over of what arrived rounded; None: nothing.
        arrived: bool[], whether all that came back is finite; None: it is still under way.
        before: float32[n], the residual before what was sent was taken back; None: it was not.
    """

    layout: Layout
    residual: Tensor
    packed: Tensor
    parts: Sequence[tuple[Parameter, int, int, int]]
    rounding: Tensor | None = None
    arrived: Tensor | None = None
    before: Tensor | None = None

    def leave_out(self, idle: Sequence[bool]) -> None:
        """Notes, a parameter each, that nothing was sent for some: their residuals have never changed."""
        self.parts = [
            (parameter, NEVER if is_idle else version, begin, count)
            for is_idle, (parameter, version, begin, count) in zip(idle, self.parts, strict=True)
        ]

    def take_back(self, stepped: Collection[int]) -> None:
        """Puts what was sent for parameters that were not stepped since into the residual again.

        What was not finite had left nothing there.  `give_again` undoes it.

        Args:
            stepped: ids of parameters that were stepped, at least those whose version does not tell.
        """
        back = self.layout.decode_sum(self.packed[None], 1.0).nan_to_num_(nan=0.0)
        if self.rounding is not None:
            back -= self.rounding
        for parameter, version, begin, count in self.parts:
            if parameter._version != version or id(parameter) in stepped:
                back[begin : begin + count] = 0.0
        self.before = self.residual.clone()
        self.residual.add_(back)

    def give_again(self) -> None:
        """Undoes `take_back`, to the bit."""
        if self.before is not None:
            self.residual.copy_(self.before)
            self.before = None


@final
class Steps:
    """What was sent in the unit of the true gradients, and whether the last step counted.

    Args:
        scaler: None, or one that is off: every step counts.
    """

    def __init__(self, scaler: Scaler | None) -> None:
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._sent: list[Sent] = []
        self._stepped: set[int] = set()
        if self.scaled:
            handle = register_optimizer_step_post_hook(_noting(weakref.ref(self)))
            OwnedHooks(self, [handle])
        #: What gradients are multiplied by in this step.
        self.scale = 1.0

    @property
    def scaled(self) -> bool:
        """Whether a scaler may skip steps."""
        return self._scaler is not None

    def begin(self) -> None:
        """A new step: the last one is settled."""
        self.look()
        self.forget()
        self.scale = self._now()

    def add(self, sent: Sent) -> None:
        """Keeps what a bucket has sent, if it may have to be taken back."""
        if self.scaled:
            self._sent.append(sent)

    def look(self) -> None:
        """Takes back what was sent in the last step where the scaler has skipped it, as far as is known.

        Somebody may look between a backward pass and its optimizers' steps: what they step then was given
        after all, and what the scaler skips then was not, so the next look decides anew.
        """
        for sent in self._sent:
            sent.give_again()
        finite = all(sent.arrived is None or bool(sent.arrived) for sent in self._sent)
        if self._sent and (not finite or self._now() < self.scale):
            for sent in self._sent:
                sent.take_back(self._stepped)

    def forget(self) -> None:
        """Whatever was sent is settled as it was last seen."""
        self._sent.clear()
        self._stepped.clear()

    def note(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped, if it was not told in the middle of it to leave its parameters alone."""
        overflow = getattr(optimizer, "found_inf", None)  # of a fused one, for the time of its step
        if self._sent and not (overflow is not None and bool(overflow)):
            groups = optimizer.param_groups
            self._stepped.update(id(parameter) for group in groups for parameter in group["params"])

    def _now(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())


def _noting(steps: weakref.ref[Steps]) -> Any:
    """A hook for all optimizers that keeps no state alive."""

    def note(optimizer: Optimizer, *_: Any) -> None:
        held = steps()
        if held is not None:
            held.note(optimizer)

    return note
