"""One model and one optimizer under one set of masks: hooks on, hooks off."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from dynaquant_core.errors import GradientError, StateMismatchError
from dynaquant_core.memory.samo.casts import Cast
from dynaquant_core.memory.samo.finite import all_finite
from dynaquant_core.memory.samo.gradients import Collector
from dynaquant_core.memory.samo.masks import names_of
from dynaquant_core.memory.samo.reduce import Reducer
from dynaquant_core.memory.samo.slots import Slot, buckets_of, masters_of
from dynaquant_core.memory.samo.swap import swap_in, swap_out
from dynaquant_core.memory.samo.zeroing import Zeroing

__all__ = ["Engine"]

logger = logging.getLogger(__name__)


class Engine:
    """Compresses gradients as they are made, lets the optimizer step vectors, expands them into the model.

    Args:
        model, optimizer: checked; changed in place.
        names: of the parameters that are trained.
        masks: of those that are pruned.
        dtype: of theta16.
        loss_scale: static; None: the loss is not scaled here.
        group: ranks to average gradients over; None: this process alone.

    Attributes:
        slots: one a trained parameter.
        temporary: bytes of the copy that the last expansion made.
        skipped: steps left out because a scaled gradient was not finite.
        syncing: whether backward passes average over the ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        names: list[str],
        masks: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        loss_scale: float | None,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.model, self.optimizer, self.dtype = model, optimizer, dtype
        self.skipped = self.temporary = 0
        self.syncing = True
        self._skips = loss_scale is not None
        parameters = names_of(model)
        copies = dtype != torch.float32 or loss_scale is not None
        trained = {name: parameters[name] for name in names}
        self.slots, self.masters = masters_of(trained, masks, copies=copies)
        self._cast = Cast(model, dtype)
        self.buckets = buckets_of(slot for slot in self.slots if group is not None or not slot.own)
        self._collector = Collector(loss_scale or 1.0)
        self._reducer = None if group is None else self._reducing(group)
        swap_in(optimizer, self.slots)
        for slot in self.slots:
            if not slot.own:
                slot.param.grad = None
        self.expand()
        self._zeroing = Zeroing(model, [slot for slot in self.slots if not slot.own])
        self._handles: list[Any] = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        for place, slot in enumerate(self.slots):
            if slot.gradient is not None:
                param: Any = slot.param
                hook = partial(_on_gradient, weakref.ref(self), place)
                self._handles.append(param.register_post_accumulate_grad_hook(hook))

    def remove(self) -> None:
        """Hooks off; model and optimizer dense again, in their own dtypes, zeros where it is pruned."""
        for handle in self._handles:
            handle.remove()
        self._zeroing.undo()
        self._cast.undo()
        with torch.no_grad():
            for slot in self.slots:
                if not slot.own:
                    slot.spread(slot.master, slot.param)
        swap_out(self.optimizer, self.slots)

    @torch.no_grad()
    def expand(self) -> None:
        """theta16 = theta32 at the places that are kept, zero elsewhere."""
        self.temporary = 0
        by_name = {slot.name: slot for slot in self.slots}
        for memory in self.masters:
            halves: dict[torch.dtype, Tensor] = {torch.float32: memory.flat}
            for name, offset in memory.offsets.items():
                slot = by_name[name]
                dtype = slot.param.dtype
                if dtype not in halves:
                    halves[dtype] = memory.flat.to(dtype)
                    self.temporary += halves[dtype].untyped_storage().nbytes()
                view = halves[dtype][offset : offset + slot.kept]
                slot.spread(view.view(slot.master.shape), slot.param)
        self._versions = [(slot.param._version, slot.master._version) for slot in self.slots]

    def follow_model(self) -> None:
        """theta32 follows what was loaded into the model, keeping its bits where theta16 did not change.

        Raises:
            StateMismatchError: the model's parameters were replaced by others.
        """
        self._follow([slot for slot in self.slots if not slot.own])

    def follow_writes(self) -> None:
        """The same of the parameters that were written to since they were expanded.

        A part's ``load_state_dict``, clipped or averaged weights: a dense training goes on from those, and
        here the next step would undo them.  Where theta32 was written to as well, it counts.
        """
        written = [
            slot
            for slot, (half, full) in zip(self.slots, self._versions, strict=True)
            if not slot.own and slot.param._version != half and slot.master._version == full
        ]
        if written:
            self._follow(written)

    @torch.no_grad()
    def _follow(self, slots: list[Slot]) -> None:
        self.require_same()
        for slot in slots:
            loaded, expected = slot.gather(slot.param), slot.master.to(slot.param.dtype)
            slot.master.copy_(torch.where(loaded == expected, slot.master, loaded.to(torch.float32)))
        self.expand()

    def require_same(self) -> None:
        """Raises StateMismatchError where parameters were replaced, cast or moved behind our back."""
        parameters = names_of(self.model)
        for slot in self.slots:
            gradient, now = slot.gradient, parameters.get(slot.name)
            if now is not slot.param:
                raise StateMismatchError(
                    f"samo: parameter {slot.name!r} was replaced after wrap "
                    "(load_state_dict(assign=True)?); load "
                    "in place, or wrap again after unwrap."
                )
            if gradient is not None and (gradient.dtype, gradient.device) != (now.dtype, now.device):
                raise StateMismatchError(
                    f"samo: parameter {slot.name!r} was {gradient.dtype} on {gradient.device} when "
                    "wrapped and is "
                    f"{now.dtype} on {now.device}; move and cast the model before samo.wrap."
                )

    def _require_known(self) -> None:
        """Raises StateMismatchError where something is trained now that was not when the model was wrapped.

        In plain float32 it trains as it would anyway; else its gradient would be scaled, or each rank's own.
        """
        if self.dtype == torch.float32 and not self._skips and self._reducer is None:
            return
        known = {slot.master for slot in self.slots}
        held = [one for group in self.optimizer.param_groups for one in group["params"]]
        strange = {one for one in held if one.requires_grad and one.grad is not None} - known
        if strange:
            names = [name for name, one in names_of(self.model).items() if one in strange]
            raise StateMismatchError(
                "samo: trained now, but frozen or not in the optimizer when the model was wrapped: "
                f"{', '.join(map(repr, names[:5])) or 'parameters of another model'}; nothing was stepped; "
                "unwrap(), then wrap model and optimizer as they are now."
            )

    def _reducing(self, group: dist.ProcessGroup) -> Reducer:
        return Reducer(self.buckets, group, load=self._collector.load, deliver=self._collector.deliver)

    @torch.no_grad()
    def produced(self, slot: Slot) -> None:
        """A gradient is complete."""
        if self._reducer is None or not self.syncing:
            if not slot.own:
                self._collector.collect(slot, reducing=False)
            return
        self._collector.collect(slot, reducing=True)
        self._reducer.ready(slot)

    def _before_step(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Judges the gradients; those of a closure when they have been made, at expanded weights."""
        self.follow_writes()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._judge()
            return None
        watched = partial(self._watched, closure)
        return ((args[0], watched, *args[2:]), {k: v for k, v in kwargs.items() if k != "closure"})

    def _watched(self, closure: Callable[[], Any]) -> Any:
        self.expand()  # an optimizer that asks more than once has moved the vectors in between
        loss = closure()
        self._judge()
        return loss

    def _after_step(self, *_: Any) -> None:
        self.expand()

    @torch.no_grad()
    def _judge(self) -> None:
        """Refuses gradients that are not finite, or drops them where the loss is scaled."""
        self.require_same()
        self._require_known()
        if self._reducer is not None:
            self._reducer.require_done()
        if getattr(self.optimizer, "found_inf", None) is not None:
            return  # a fused step under GradScaler looks for itself
        held = [
            one for group in self.optimizer.param_groups for one in group["params"] if one.grad is not None
        ]
        gradients = [one.grad for one in held if one.grad.layout == torch.strided]
        if all_finite(gradients):
            return
        if not self._skips:
            raise GradientError(
                f"samo: the gradient of {self._culprit()!r} holds NaN or infinity; nothing was stepped; "
                "lower the "
                "learning rate, or scale the loss (torch.amp.GradScaler, or loss_scale= of samo.wrap)."
            )
        for one in held:
            one.grad = None
        self.skipped += 1
        logger.warning("samo: a gradient overflowed; the step is left out (%d so far)", self.skipped)

    def _culprit(self) -> str:
        for slot in self.slots:
            gradient = slot.master.grad
            if gradient is not None and not bool(torch.isfinite(gradient).all()):
                return slot.name
        return "a parameter that is not the model's"


def _on_gradient(engine: weakref.ref[Engine], place: int, _: Tensor) -> None:
    """A parameter's hook.  Torch hides these from the collector: one that held the model would keep it."""
    owner = engine()
    if owner is not None:
        owner.produced(owner.slots[place])
