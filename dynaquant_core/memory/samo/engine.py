"""One model and one optimizer under one set of masks: hooks on, hooks off."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from threading import RLock
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from dynaquant_core.errors import GradientError
from dynaquant_core.memory.samo.agreed import Agreed
from dynaquant_core.memory.samo.casts import Cast
from dynaquant_core.memory.samo.expansion import Expansion
from dynaquant_core.memory.samo.finite import all_finite
from dynaquant_core.memory.samo.gathering import Gathering, try_kernels
from dynaquant_core.memory.samo.gradients import Collector
from dynaquant_core.memory.samo.guard import (
    culprit,
    require_known,
    require_no_strays,
    require_same_layer,
    values_of,
)
from dynaquant_core.memory.samo.masks import names_of
from dynaquant_core.memory.samo.reduce import Reducer
from dynaquant_core.memory.samo.slots import Slot, buckets_of, masters_of
from dynaquant_core.memory.samo.stepped import Stepped
from dynaquant_core.memory.samo.swap import recast, remembered, swap_in, swap_out
from dynaquant_core.memory.samo.unchanged import Unchanged
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
        former: masters of an engine that was removed, by name; they become this one's.

    Attributes:
        slots: one a trained parameter.
        temporary: bytes of the copy that the last expansion made.
        copies: whether every layer has a theta32 of its own, pruned or not (mixed precision, a scaled loss).
        loaded: dense values of layers that lost some to their mask when they were written to, until the next
            step: if an optimizer's state with another mask comes next, they are what its layers begin with.
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
        former: Mapping[str, nn.Parameter] | None = None,
    ) -> None:
        self.model, self.optimizer, self.dtype = model, optimizer, dtype
        parameters = names_of(model)
        try_kernels(parameters.values())
        self.skipped = self.temporary = 0
        self.loaded: dict[str, Tensor] = {}
        self.syncing = True
        self._turn = RLock()  # hooks run outside of autograd's own lock, on as many threads as run backward
        self._skips = loss_scale is not None
        self.copies = copies = dtype != torch.float32 or loss_scale is not None
        trained = {name: parameters[name] for name in names}
        self.slots, self.masters = masters_of(trained, masks, copies=copies, former=former or {})
        waiting = {slot.name: slot.param.grad for slot in self.slots if slot.param.grad is not None}
        put_back = remembered(optimizer)
        self._handles: list[Any] = []
        self._cast = Cast(model, dtype)
        try:
            self._take(loss_scale, group, waiting)
        except BaseException:  # no memory left, as a rule
            self._give_back(put_back, waiting)
            raise
        self._zeroing = Zeroing(model, self._apart)

    def _take(
        self, loss_scale: float | None, group: dist.ProcessGroup | None, waiting: Mapping[str, Tensor]
    ) -> None:
        """All that may fail once the model is cast; what cannot be taken back exactly comes last."""
        model, optimizer = self.model, self.optimizer
        self.buckets = buckets_of(slot for slot in self.slots if group is not None or not slot.own)
        self._collector = Collector(loss_scale or 1.0)
        self._agreed = None if group is None else Agreed(self.slots, optimizer, group)
        self._reducer = self._reducing(group)
        swap_in(optimizer, self.slots)
        self._apart = [slot for slot in self.slots if not slot.own]
        self._gathering = Gathering(self._apart, loss_scale or 1.0, self._collector.compress)
        self._known = frozenset(id(slot.master) for slot in self.slots)
        for slot in self._apart:
            slot.param.grad = None
        self._unchanged = Unchanged(model, self.slots)
        self._stepped = Stepped(optimizer, self._apart, self.masters)
        self._expansion = Expansion(self.slots, self.masters)
        self.receive(waiting)
        self.expand()
        self._handles += [
            # A compiled step runs them between its graphs: nothing here can be part of one.
            optimizer.register_step_pre_hook(torch.compiler.disable(self._before_step)),  # type: ignore[no-untyped-call]
            optimizer.register_step_post_hook(torch.compiler.disable(self._after_step)),  # type: ignore[no-untyped-call]
        ]
        for place, slot in enumerate(self.slots):
            if slot.gradient is not None:
                param: Any = slot.param
                hook = partial(_on_gradient, weakref.ref(self), place)
                self._handles.append(param.register_post_accumulate_grad_hook(hook))

    def _give_back(self, put_back: Callable[[], None], waiting: Mapping[str, Tensor]) -> None:
        """Model and optimizer as they were: moments exactly, and weights where the mask keeps them.

        The others are what the cast's rounding left, or zero where expanding them is what failed.
        """
        for handle in self._handles:
            handle.remove()
        self._cast.undo()
        put_back()
        for slot in self.slots:
            if not slot.own:
                with torch.no_grad():
                    slot.refill(slot.param)
                slot.param.grad = waiting.get(slot.name)

    def remove(self, *, ending: bool = True) -> None:
        """Hooks off; model and optimizer dense again, zeros where it is pruned.

        Args:
            ending: moments and waiting gradients get the dtypes of the model's own parameters, and the
                model; False: another engine comes next.
        """
        self.flush()
        waiting = self.pending() if ending else {}
        for handle in self._handles:
            handle.remove()
        self._zeroing.undo()
        self._cast.undo()
        with torch.no_grad():
            for slot in self.slots:
                if not slot.own:
                    slot.spread(slot.master, slot.param)
        swap_out(self.optimizer, self.slots, own_dtype=ending)
        if ending:
            self.finish(waiting)

    def finish(self, waiting: Mapping[str, Tensor]) -> None:
        """The end after a `remove`, also of one that another engine was to follow: dtypes, gradients."""
        recast(self.optimizer, self.slots)
        for slot in self.slots:
            if not slot.own and slot.name in waiting:
                slot.param.grad = waiting[slot.name].to(slot.param.dtype)

    def whole(self) -> dict[str, Tensor]:
        """theta32 of the layers of which nothing is pruned, as it is in memory, for `take_over`."""
        return {slot.name: slot.master.detach() for slot in self.slots if not slot.own and slot.index is None}

    @torch.no_grad()
    def take_over(self, whole: Mapping[str, Tensor]) -> None:
        """theta32 with all the bits that it had in another engine, where nothing was pruned there."""
        for slot in self.slots:
            if not slot.own and slot.name in whole:
                slot.master.data.copy_(slot.gather(whole[slot.name]))
        self.expand()

    @torch.no_grad()
    def pending(self) -> dict[str, Tensor]:
        """Gradients that no step has used, dense, by parameter name: those of an accumulation, as a rule."""
        self.flush()
        found = {}
        for slot in self.slots:
            gradient = slot.master.grad
            if gradient is not None and not slot.own:
                dense = torch.zeros_like(slot.param, dtype=gradient.dtype)
                slot.spread(gradient, dense)
                found[slot.name] = dense
            elif gradient is not None:
                found[slot.name] = gradient if gradient.layout == torch.strided else gradient.to_dense()
        return found

    def flush(self) -> None:
        """Whoever looks at gradients while backward runs finds all that it has made so far."""
        self._gathering.flush()

    @torch.no_grad()
    def receive(self, pending: Mapping[str, Tensor]) -> None:
        """Goes on from the gradients of another engine, or of the model before it was wrapped."""
        for slot in self.slots:
            if slot.own or slot.name not in pending:
                continue
            dense = pending[slot.name]
            dense = dense if dense.layout == torch.strided else dense.to_dense()
            kept = slot.gather(dense).to(slot.master.dtype)
            if slot.gradient is not None and slot.gradient.dtype == kept.dtype:  # both are the same memory
                kept = slot.gradient.copy_(kept)
            slot.master.grad = kept

    def expand(self) -> None:
        """theta16 = theta32 at the places that are kept, zero elsewhere."""
        self.temporary = self._expansion.run()
        self._versions = {slot: (slot.param._version, slot.master._version) for slot in self._apart}

    def follow_model(self) -> None:
        """theta32 follows what was loaded into the model, keeping its bits where theta16 did not change.

        Raises:
            StateMismatchError: the model's parameters were replaced by others.
        """
        self._follow(self._apart)

    def follow_writes(self) -> None:
        """The same of the parameters that were written to since they were expanded.

        A part's ``load_state_dict``, clipped or averaged weights: a dense training goes on from those, and
        here the next step would undo them.  Where theta32 was written to as well, it counts.
        """
        self._unchanged.require()
        self._follow_written()

    @torch.no_grad()
    def _follow_written(self) -> None:
        written = [
            slot
            for slot, (half, full) in self._versions.items()
            if slot.param._version != half and slot.master._version == full
        ]
        if written:
            self._follow(written)

    @torch.no_grad()
    def _follow(self, slots: list[Slot]) -> None:
        self._unchanged.require()
        for slot in slots:
            loaded, expected = slot.gather(slot.param), slot.master.to(slot.param.dtype)
            self._remember(slot, loaded)
            slot.master.copy_(torch.where(loaded == expected, slot.master, loaded.to(torch.float32)))
        self.expand()

    def _remember(self, slot: Slot, kept: Tensor) -> None:
        """Keeps what expanding is about to zero; where theta32 are copies, a state has them of all layers."""
        if self.copies or slot.index is None or slot.param._version == self._versions[slot][0]:
            return
        self.loaded.pop(slot.name, None)
        if int(slot.param.count_nonzero()) > int(kept.count_nonzero()):
            self.loaded[slot.name] = slot.param.detach().clone()

    def _reducing(self, group: dist.ProcessGroup | None) -> Reducer | None:
        if group is None or self._agreed is None:
            return None
        deliver, agree = self._collector.deliver, self._agreed.require
        return Reducer(self.buckets, group, load=self._load, deliver=deliver, agree=agree)

    def doubt(self) -> None:
        """A state was loaded, perhaps on this rank alone; the ranks compare before they average again."""
        if self._agreed is not None:
            self._agreed.doubt()

    def _load(self, slot: Slot) -> bool:
        self.flush()
        return self._collector.load(slot)

    def produced(self, slot: Slot) -> None:
        """A gradient is complete; called outside autograd.

        Raises:
            StateMismatchError: it is of a model that was cast or moved.
            GradientError: it is of other weights than the optimizer has by now.
        """
        reducer = self._reducer if self.syncing else None
        versions = self._versions.get(slot)
        written = versions is not None and slot.master._version != versions[1]
        if reducer is None and not written and self._gathering.hold(slot):  # no layer that was cast or moved
            return
        if reducer is None and slot.own:  # autograd's own gradient serves, and nothing held is of this layer
            require_same_layer(slot)
            return
        self.flush()
        require_same_layer(slot)
        if written:
            raise GradientError(
                f"samo: the optimizer's weights of {slot.name!r} were written to outside of its step() (by a "
                "second optimizer inside of it, as SAM has one, or by hand), so this gradient is of weights "
                "that the model has no more; write into the model's parameters, or wrap with the optimizer "
                "whose step() it is."
            )
        if reducer is not None:
            self._collector.collect(slot, reducing=True)
            reducer.ready(slot)
        else:
            self._collector.collect(slot, reducing=False)

    def _before_step(self, _: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Judges the gradients; those of a closure when they have been made, at expanded weights."""
        self._unchanged.require()
        self.flush()
        self._follow_written()
        self.loaded.clear()
        self._stepped.before()
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
        self._stepped.after()

    @torch.no_grad()
    def _judge(self) -> None:
        """Refuses gradients that are not finite, or drops them where the loss is scaled."""
        require_no_strays(self._apart)
        held = [
            one for group in self.optimizer.param_groups for one in group["params"] if one.grad is not None
        ]
        if self.copies or self._reducer is not None:  # else what is new trains as it would anyway
            require_known(self.model, held, self._known)
        if self._reducer is not None:
            self._reducer.require_done()
        if getattr(self.optimizer, "found_inf", None) is not None:
            return  # a fused step under GradScaler looks for itself
        gradients = [one.grad for one in held]
        if all_finite([one if one.layout == torch.strided else values_of(one) for one in gradients]):
            return
        if not self._skips:
            raise GradientError(
                f"samo: the gradient of {culprit(self.slots)!r} holds NaN or infinity; nothing was stepped; "
                "lower the learning rate, or scale the loss "
                "(torch.amp.GradScaler, or loss_scale= of samo.wrap)."
            )
        for one in held:
            one.grad = None
        self.skipped += 1
        logger.warning("samo: a gradient overflowed; the step is left out (%d so far)", self.skipped)


def _on_gradient(engine: weakref.ref[Engine], place: int, _: Tensor) -> None:
    """A parameter's hook.  Torch hides these from the collector: one that held the model would keep it."""
    owner = engine()
    if owner is None:
        return
    with owner._turn:
        if torch.is_grad_enabled():  # create_graph=True; else torch has turned it off, and that costs
            with torch.no_grad():
                owner.produced(owner.slots[place])
        else:
            owner.produced(owner.slots[place])
