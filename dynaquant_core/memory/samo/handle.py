"""The handle that `wrap` gives."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dynaquant_core.config import require
from dynaquant_core.errors import ConfigError
from dynaquant_core.memory.samo.early_bird import EarlyBird
from dynaquant_core.memory.samo.engine import Engine
from dynaquant_core.memory.samo.guard import require_layout
from dynaquant_core.memory.samo.places import mask_of
from dynaquant_core.memory.samo.pruning import Pruning
from dynaquant_core.memory.samo.state import from_state, numbered, to_state
from dynaquant_core.memory.samo.swap import require_movable
from dynaquant_core.state.compressed import MARK

__all__ = ["Samo"]

logger = logging.getLogger(__name__)

#: Where `copy.deepcopy` asks an object for a way of its own.
COPY: Final = "__deepcopy__"


class Samo:
    """What `wrap` gives: the few things that model and optimizer cannot be asked.

    Saving needs nothing of it: the mask and the float32 weights are part of ``optimizer.state_dict()``.

    Attributes:
        model, optimizer: those that were wrapped.
        active: whether the model is pruned; False while an early-bird ticket is awaited.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        names: list[str],
        masks: Mapping[str, Tensor],
        *,
        pruning: Pruning,
        bird: EarlyBird | None,
        settings: Mapping[str, Any],
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.active, self._ended = bird is None, False
        self._names, self._pruning, self._bird, self._settings = names, pruning, bird, dict(settings)
        self._skipped = 0
        self._asked = self._stale = False  # for what the optimizer steps; since which it is something else
        self.engine = Engine(model, optimizer, names, masks, **self._settings)
        for parameter in model.parameters():
            setattr(parameter, MARK, True)
        vars(optimizer)[COPY] = _refuse_copy
        module: Any = model  # torch's hook has no types
        self._handles = [
            optimizer.register_state_dict_post_hook(self._on_save),
            optimizer.register_load_state_dict_pre_hook(self._on_load),
            optimizer.register_step_pre_hook(torch.compiler.disable(self._on_step)),  # type: ignore[no-untyped-call]
            module.register_load_state_dict_post_hook(_following(weakref.ref(self))),
        ]

    @property
    def sparsity(self) -> float:
        """Share of all trained weights that is pruned."""
        whole = sum(slot.param.numel() for slot in self.engine.slots)
        return 1 - sum(slot.kept for slot in self.engine.slots) / whole

    @property
    def skipped(self) -> int:
        """Steps left out because a gradient overflowed under ``loss_scale``."""
        return self._skipped + self.engine.skipped

    def masks(self) -> dict[str, Tensor]:
        """bool, of each pruned layer's shape, by parameter name; what `wrap` takes as ``mask``.

        Raises:
            StateMismatchError: a parameter was replaced, or lies in memory in another order than before.
        """
        require_layout(self.model, self.engine.slots)
        return {
            slot.name: mask_of(slot.index, slot.param) for slot in self.engine.slots if slot.index is not None
        }

    def parameters(self) -> Iterator[Tensor]:
        """What the optimizer steps, with all gradients made so far: for `torch.nn.utils.clip_grad_norm_`.

        Vectors stay the same objects whatever mask comes.  But in float32 a layer that begins or ceases to be
        pruned is stepped in another one: ask anew at each step; of a list that was kept, the log says so.
        """
        self._asked = True
        self.engine.flush()
        for group in self.optimizer.param_groups:
            yield from group["params"]

    @torch.no_grad()
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and float32 copy of each trained parameter, in the model's shape, zero where it is pruned.

        For an average of the weights: in half precision one of the model's own hardly moves, as what a step
        adds to it is rounded away.  Made one after the other, so only one of them takes memory.

        Raises:
            StateMismatchError: as `masks`.
            ConfigError: the model was unwrapped, and has its weights itself.

        Example:
            >>> from dynaquant_core.memory import samo
            >>> model = nn.Linear(4, 2, bias=False)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.bfloat16)
            >>> [(name, one.dtype, int(one.count_nonzero())) for name, one in handle.weights()]
            [('weight', torch.float32, 4)]
        """
        require(not self._ended, "samo: weights() after unwrap(); take those of model.named_parameters().")
        self.engine.follow_writes()
        for slot in self.engine.slots:
            dense = torch.zeros_like(slot.param, dtype=torch.float32)
            slot.spread(slot.master.detach(), dense)
            yield slot.name, dense

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times ``loss_scale``, in float32, to call ``backward`` on."""
        return loss.to(torch.float32) * (self._settings["loss_scale"] or 1.0)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside add up on their rank; the next one outside averages the sum."""
        before, self.engine.syncing = self.engine.syncing, False
        try:
            yield
        finally:
            self.engine.syncing = before

    def end_epoch(self) -> bool:
        """Shows the pruner this epoch's weights; True at the one call at which the ticket is drawn.

        From then on the model is pruned; weights, moments and waiting gradients go on from what they are.

        Raises:
            ConfigError: the pruner is not an early bird, the model was unwrapped, or the optimizer holds what
                cannot follow its weights to a mask (LBFGS after a step).
        """
        require(not self._ended, "samo: end_epoch after unwrap(); wrap the model again to go on pruning.")
        if self._bird is None:
            raise ConfigError(
                "samo: end_epoch is for pruner='early_bird'; this model's mask was drawn at wrap."
            )
        if self.active:
            return False
        require_movable(self.optimizer, self.engine.slots)
        self.engine.follow_writes()
        weights = {slot.name: slot.master.detach() for slot in self.engine.slots}
        masks = self._pruning.masks(weights, self.model, self._names)
        if self._bird.look(masks):
            self._again(masks)
            self.active = True
        return self.active

    def unwrap(self) -> None:
        """Gives the dense model back in its own dtypes, pruned weights zero, and the optimizer over it.

        Again: does nothing.

        Raises:
            StateMismatchError: as `masks`; the model stays wrapped.
            ConfigError: the optimizer holds what cannot follow its weights (LBFGS or Adafactor after a step);
                likewise.
        """
        if self._ended:
            return
        require_movable(self.optimizer, self.engine.slots)
        self.engine.follow_writes()
        self.engine.remove()
        self._end()

    def _end(self) -> None:
        """Nothing of SAMO is left on model and optimizer."""
        self._ended = True
        vars(self.optimizer).pop(COPY, None)
        for handle in self._handles:
            handle.remove()
        for parameter in self.model.parameters():
            if hasattr(parameter, MARK):
                delattr(parameter, MARK)

    def _again(self, masks: Mapping[str, Tensor]) -> None:
        """The same training under other masks."""
        former, pending, whole = self.engine, self.engine.pending(), self.engine.whole()
        masters = {slot.name: slot.master for slot in former.slots}
        again = {slot.name: slot.master for slot in former.slots if not slot.own}
        self._skipped += former.skipped
        former.remove(ending=False)
        try:
            self.engine = Engine(
                self.model, self.optimizer, self._names, masks, former=again, **self._settings
            )
        except BaseException:  # the former engine is off: they are a dense pair again, and are to be one
            former.finish(pending)
            self._end()
            raise
        self.engine.take_over(whole)
        self.engine.receive(pending)
        if self._asked and any(slot.master is not masters[slot.name] for slot in self.engine.slots):
            self._asked, self._stale = False, True

    def _on_step(self, *_: Any) -> None:
        if self._stale and not self._asked:
            logger.warning(
                "samo: handle.parameters() was asked for before the mask changed and not since: in float32 "
                "layers that are pruned now, or no longer, are stepped in other tensors, so clipping a list "
                "that was kept leaves them out; ask for handle.parameters() at each step"
            )
        self._stale = False

    def _on_save(self, _: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        self.engine.follow_writes()
        pruner = None if self._bird is None else self._bird.state_dict()
        return to_state(self.engine, state, active=self.active, pruner=pruner)

    @torch.no_grad()
    def _on_load(self, _: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        stored = from_state(self.engine, state)
        self.engine.follow_writes()
        loaded = self.engine.loaded
        if self._bird is not None and stored.pruner is not None:
            self._bird.load_state_dict(stored.pruner)
        if not _same(stored.masks, self.masks()):
            self._again(stored.masks)
        self.engine.doubt()
        self.active = stored.active
        for slot in self.engine.slots:
            if not slot.own:
                slot.master.data.copy_(stored.theta32[slot.name])
            elif slot.name in loaded:  # it has no mask there, and its weights were the model's to load
                slot.param.copy_(loaded[slot.name])
        loaded.clear()
        self.engine.expand()
        return numbered(state)


def _refuse_copy(_: Any) -> Any:
    """A copy's vectors would belong to no model: its steps would change nothing, and nobody would be told."""
    raise ConfigError(
        "samo: an optimizer under samo.wrap was to be deep-copied, alone or with its model, and the copy "
        "would train nothing; copy both after unwrap(), or build and wrap a second pair and load these "
        "state_dicts into it; the model alone can be copied."
    )


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        bool(torch.equal(mask, other[name])) for name, mask in one.items()
    )


def _following(handle: weakref.ref[Samo]) -> Any:
    """After ``model.load_state_dict`` theta32 follows; a function, for deep copies copy methods."""

    def follow(model: nn.Module, _: Any) -> None:
        owner = handle()
        if owner is not None and owner.model is model:
            owner.engine.follow_model()
            owner.engine.doubt()

    return follow
