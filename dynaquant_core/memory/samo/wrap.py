"""`wrap`: one line that puts a model and its optimizer under SAMO, and the handle that it gives."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from dynaquant_core.config import require, require_choice, require_number
from dynaquant_core.errors import ConfigError
from dynaquant_core.memory.marker import MARK, is_compressed
from dynaquant_core.memory.samo.early_bird import EarlyBird
from dynaquant_core.memory.samo.engine import Engine
from dynaquant_core.memory.samo.guard import require_layout, require_no_others
from dynaquant_core.memory.samo.masks import (
    Scope,
    checked_masks,
    magnitude_masks,
    names_of,
    prunable,
    require_layer,
)
from dynaquant_core.memory.samo.places import mask_of
from dynaquant_core.memory.samo.reduce import Group, agree, broadcast, resolve
from dynaquant_core.memory.samo.state import from_state, numbered, to_state
from dynaquant_core.memory.samo.swap import require_optimizer
from dynaquant_core.state import bare_name, matches

__all__ = ["Samo", "wrap"]

#: The share pruned where neither a mask nor a share is given: the paper's.
DEFAULT_SPARSITY: Final = 0.9


def wrap(
    model: nn.Module,
    optimizer: Optimizer,
    mask: Mapping[str, Tensor] | None = None,
    *,
    sparsity: float | None = None,
    pruner: Literal["magnitude", "early_bird"] | EarlyBird = "magnitude",
    scope: Scope = "layer",
    dense: str | Sequence[str] = (),
    embeddings: bool = False,
    dtype: torch.dtype = torch.float16,
    loss_scale: float | None = None,
    group: Group = "world",
) -> Samo:
    """Prunes a model and trains only what is left, in less memory (SAMO, arXiv 2302.05045).

    The model stays dense, in ``dtype``, zeros in place.  Gradients, float32 weights and the optimizer's
    moments
    exist only at unpruned places.  The optimizer stays the same object, so schedulers that hold it go on.

    Args:
        model: on its device already; not wrapped in DDP.  Changed in place.
        optimizer: any of torch's that steps each weight by itself, built on the model's parameters.
        mask: parameter name -> bool tensor of its shape, True stays; layers without one stay dense.
        sparsity: share to prune, in [0, 1), where no mask is given; None: 0.9.
        pruner: "magnitude" prunes now; "early_bird", or an `EarlyBird`, when the mask has settled: call
            `Samo.end_epoch` after each epoch.
        scope: "layer": the same share of every layer; "global": one threshold for all.
        dense: patterns of parameters that are not pruned; vectors (norms, biases, whatever has one dimension
            of more than one element at most) never are.
        embeddings: whether embedding tables, and heads tied to them, are pruned too.
        dtype: of the model: float16, bfloat16, or float32 (then weights equal those of masked dense training
        bit
            for bit).
        loss_scale: multiply the loss with it (`Samo.scale`); steps whose gradients overflow are left out.
        None:
            none, or that of a `torch.amp.GradScaler`.
        group: ranks whose gradients are averaged: "world" (all, where torch.distributed is at work), a
        process
            group, or None.

    Raises:
        ConfigError: an argument, a mask, a parameter or the optimizer does not fit; nothing was changed.

    Example:
        >>> model = nn.Linear(8, 4)
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        >>> handle = wrap(model, optimizer, sparsity=0.75, dtype=torch.float32)
        >>> model(torch.ones(2, 8)).sum().backward()
        >>> optimizer.step()
        >>> int(model.weight.count_nonzero()), [tuple(one.shape) for one in handle.parameters()]
        (8, [(8,), (4,)])
    """
    names = _require(model, optimizer)
    require_choice("samo", "dtype", dtype, (torch.float16, torch.bfloat16, torch.float32))
    if loss_scale is not None:
        require_number("samo", "loss_scale", loss_scale, 2.0**-64, 2.0**64)
    bird = _bird(pruner)
    patterns = _patterns(dense, model)
    plan = _Plan(DEFAULT_SPARSITY if sparsity is None else sparsity, scope, patterns, embeddings)
    if mask is None:
        plan.require_something(model, names)
    else:
        plain = sparsity is None and bird is None and not patterns and not embeddings
        require(
            plain, "samo: give a mask, or how to find one (sparsity, pruner, dense, embeddings), not both."
        )
    given = None if mask is None else checked_masks(mask, model, names)
    ranks = resolve(group)
    if ranks is not None or dtype != torch.float32 or loss_scale is not None:
        require_no_others(model, names)
    if ranks is not None:
        _join(model, given, ranks)
    masks = (
        given if given is not None else {} if bird is not None else plan.masks(names_of(model), model, names)
    )
    settings = {"dtype": dtype, "loss_scale": loss_scale, "group": ranks}
    return Samo(model, optimizer, names, masks, plan=plan, bird=bird, settings=settings)


class _Plan:
    """How a mask is found."""

    def __init__(self, sparsity: float, scope: Scope, dense: tuple[str, ...], embeddings: bool) -> None:
        require_number("samo", "sparsity", sparsity, 0.0, 1.0, open_high=True)
        require_choice("samo", "scope", scope, ("layer", "global"))
        self.sparsity, self.scope, self.dense, self.embeddings = sparsity, scope, dense, embeddings

    def require_something(self, model: nn.Module, names: Sequence[str]) -> None:
        found = prunable(model, names, dense=self.dense, embeddings=self.embeddings)
        require(
            bool(found), "samo: no parameter can be pruned: all are vectors, embeddings or match `dense`."
        )

    def masks(
        self, weights: Mapping[str, Tensor], model: nn.Module, names: Sequence[str]
    ) -> dict[str, Tensor]:
        found = prunable(model, names, dense=self.dense, embeddings=self.embeddings)
        return magnitude_masks({name: weights[name] for name in found}, self.sparsity, scope=self.scope)


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
        plan: _Plan,
        bird: EarlyBird | None,
        settings: Mapping[str, Any],
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.active, self._ended = bird is None, False
        self._names, self._plan, self._bird, self._settings = names, plan, bird, dict(settings)
        self._skipped = 0
        self.engine = Engine(model, optimizer, names, masks, **self._settings)
        for parameter in model.parameters():
            setattr(parameter, MARK, True)
        module: Any = model  # torch's hook has no types
        self._handles = [
            optimizer.register_state_dict_post_hook(self._on_save),
            optimizer.register_load_state_dict_pre_hook(self._on_load),
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
        """What the optimizer steps, with gradients: for `torch.nn.utils.clip_grad_norm_`."""
        for group in self.optimizer.param_groups:
            yield from group["params"]

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
            ConfigError: the pruner is not an early bird, or the model was unwrapped.
        """
        require(not self._ended, "samo: end_epoch after unwrap(); wrap the model again to go on pruning.")
        if self._bird is None:
            raise ConfigError(
                "samo: end_epoch is for pruner='early_bird'; this model's mask was drawn at wrap."
            )
        if self.active:
            return False
        self.engine.follow_writes()
        weights = {slot.name: slot.master.detach() for slot in self.engine.slots}
        masks = self._plan.masks(weights, self.model, self._names)
        if self._bird.look(masks):
            self._again(masks)
            self.active = True
        return self.active

    def unwrap(self) -> None:
        """Gives the dense model back in its own dtypes, pruned weights zero, and the optimizer over it.

        Again: does nothing.

        Raises:
            StateMismatchError: as `masks`; the model stays wrapped.
        """
        if self._ended:
            return
        self.engine.follow_writes()
        self._ended = True
        self.engine.remove()
        for handle in self._handles:
            handle.remove()
        for parameter in self.model.parameters():
            if hasattr(parameter, MARK):
                delattr(parameter, MARK)

    def _again(self, masks: Mapping[str, Tensor]) -> None:
        """The same training under other masks."""
        former, pending = self.engine, self.engine.pending()
        self._skipped += former.skipped
        former.remove(ending=False)
        self.engine = Engine(self.model, self.optimizer, self._names, masks, **self._settings)
        self.engine.take_over(former)
        self.engine.receive(pending)

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
        self.active = stored.active
        for slot in self.engine.slots:
            if not slot.own:
                slot.master.data.copy_(stored.theta32[slot.name])
            elif slot.name in loaded:  # it has no mask there, and its weights were the model's to load
                slot.param.copy_(loaded[slot.name])
        loaded.clear()
        self.engine.expand()
        return numbered(state)


def _require(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Names of the trained parameters; raises ConfigError where model or optimizer cannot be wrapped."""
    require(
        isinstance(model, nn.Module), f"samo: model is {type(model).__name__}, expected a torch.nn.Module."
    )
    require(
        not isinstance(model, DistributedDataParallel | DataParallel),
        f"samo: model is wrapped in {type(model).__name__}; give model.module: SAMO averages the "
        "compressed gradients itself.",
    )
    parameters = names_of(model)
    require(
        not is_compressed(model),
        "samo: the model is wrapped already; call unwrap() of its handle first.",
    )
    names = require_optimizer(optimizer, parameters)
    held = {one for group in optimizer.param_groups for one in group["params"]}
    for name, parameter in parameters.items():
        if parameter in held:
            require_layer(name, parameter)
    return names


def _patterns(dense: Any, model: nn.Module) -> tuple[str, ...]:
    """The patterns of `wrap`; one that covers nothing would leave what it was meant for to the pruner."""
    found = (dense,) if isinstance(dense, str) else tuple(dense) if isinstance(dense, Sequence) else (dense,)
    names = [bare_name(name) for name, _ in model.named_parameters(remove_duplicate=False)]
    for one in found:
        require(isinstance(one, str), f"samo: dense must be patterns of names, got {one!r}.")
        if not any(matches(name, [one]) for name in names):
            near = get_close_matches(one, names, n=1, cutoff=0.3)
            hint = f"did you mean {near[0]!r}?" if near else "use names of model.named_parameters()."
            raise ConfigError(f"samo: pattern {one!r} of dense covers no parameter; {hint}")
    return found


def _bird(pruner: Any) -> EarlyBird | None:
    if isinstance(pruner, EarlyBird):
        return pruner
    require_choice("samo", "pruner", pruner, ("magnitude", "early_bird"))
    return EarlyBird() if pruner == "early_bird" else None


def _join(model: nn.Module, masks: Mapping[str, Tensor] | None, group: dist.ProcessGroup) -> None:
    """Ranks agree on masks before anything is changed, then on weights."""
    digest = xxhash.xxh3_64()
    for name, mask in sorted((masks or {}).items()):
        digest.update(name.encode())
        digest.update(mask.cpu().contiguous().numpy().tobytes())
    device = next(model.parameters()).device
    require(
        agree(digest.intdigest() >> 2, group, device),
        "samo: the ranks were given different masks; give all of them the same.",
    )
    broadcast(model, group)


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

    return follow
