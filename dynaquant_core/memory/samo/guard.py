"""What is refused before anything is written: a model that was changed, gradients that nobody would see."""

from __future__ import annotations

from collections.abc import Container, Iterable

import torch
from torch import Tensor, nn

from dynaquant_core.config import require
from dynaquant_core.errors import GradientError, StateMismatchError
from dynaquant_core.memory.samo.masks import names_of
from dynaquant_core.memory.samo.places import memory_order
from dynaquant_core.memory.samo.slots import Slot

__all__ = [
    "culprit",
    "require_known",
    "require_layout",
    "require_no_others",
    "require_no_strays",
    "require_same",
    "require_same_layer",
    "values_of",
]


def require_layout(model: nn.Module, slots: Iterable[Slot]) -> None:
    """Refuses parameters that were replaced, or that lie in memory in another order than when wrapped.

    A layer's index counts places in memory: in another order it would name other weights.

    Raises:
        StateMismatchError: one was.
    """
    parameters = names_of(model)
    for slot in slots:
        now = parameters.get(slot.name)
        if now is not slot.param:
            raise StateMismatchError(
                f"samo: parameter {slot.name!r} was replaced after wrap "
                "(load_state_dict(assign=True)?); load in place, or build model and optimizer anew and wrap "
                "them."
            )
        if not slot.own and memory_order(now) != slot.order:
            (shape, strides), (new_shape, new_strides) = slot.order, memory_order(now)
            raise StateMismatchError(
                f"samo: parameter {slot.name!r} had shape {list(shape)} and strides {list(strides)} when "
                f"wrapped and has {list(new_shape)} and {list(new_strides)} now (dimensions of one element "
                "apart); nothing was written; undo that, or choose a memory format before samo.wrap."
            )


def require_same(model: nn.Module, slots: Iterable[Slot]) -> None:
    """The same, and no parameter was cast or moved behind our back.

    Raises:
        StateMismatchError: one was.
    """
    slots = list(slots)
    require_layout(model, slots)
    for slot in slots:
        require_same_layer(slot)


def require_same_layer(slot: Slot) -> None:
    """The same of one parameter's dtype and device alone."""
    gradient, now = slot.gradient, slot.param
    if gradient is not None and (gradient.dtype, gradient.device) != (now.dtype, now.device):
        raise StateMismatchError(
            f"samo: parameter {slot.name!r} was {gradient.dtype} on {gradient.device} when wrapped "
            f"and is {now.dtype} on {now.device}; undo that; move and cast the model before samo.wrap."
        )


def require_known(model: nn.Module, held: Iterable[Tensor], known: Container[int]) -> None:
    """Refuses gradients of what was not trained when the model was wrapped.

    Args:
        model: the wrapped one.
        held: what the optimizer steps and has a gradient.
        known: ``id`` of what it was given to step when the model was wrapped.

    Raises:
        StateMismatchError: there is one; it would be scaled, or each rank's own.
    """
    strange = {one for one in held if id(one) not in known and one.requires_grad}
    if strange:
        names = [name for name, one in names_of(model).items() if one in strange]
        raise StateMismatchError(
            "samo: trained now, but frozen or not in the optimizer when the model was wrapped: "
            f"{', '.join(map(repr, names[:5])) or 'parameters of another model'}; nothing was stepped; "
            "unwrap(), then wrap model and optimizer as they are now."
        )


def require_no_others(model: nn.Module, names: Iterable[str]) -> None:
    """Refuses a model of which something is trained that the optimizer does not hold: by a second one, say.

    Raises:
        ConfigError: names it; its gradients would stay scaled, or each rank's own.
    """
    held = set(names)
    others = [name for name, one in names_of(model).items() if one.requires_grad and name not in held]
    require(
        not others,
        f"samo: {', '.join(map(repr, others[:5]))}{' and others' if len(others) > 5 else ''} require "
        "gradients, but the optimizer does not hold them, so nobody would average or unscale them; give it "
        "all that is trained (in groups, where settings differ), or freeze the rest with "
        "requires_grad_(False).",
    )


def require_no_strays(slots: Iterable[Slot]) -> None:
    """Refuses gradients that were written into the model: those of backward do not stay there.

    Args:
        slots: those of which the optimizer steps a copy.

    Raises:
        GradientError: there is one; a step would go without it.
    """
    strays = [slot.name for slot in slots if slot.param.grad is not None]
    if strays:
        raise GradientError(
            f"samo: .grad of {', '.join(map(repr, strays[:5]))} was written into the model, where the "
            "optimizer does not look; nothing was stepped; write it, compressed, into .grad of the tensors "
            "of handle.parameters(), or call backward."
        )


def values_of(gradient: Tensor) -> Tensor:
    """The numbers of a gradient, of a sparse one those that it has."""
    return gradient if gradient.layout == torch.strided else gradient.detach().coalesce().values()


def culprit(slots: Iterable[Slot]) -> str:
    """The name of a parameter whose gradient is not finite."""
    for slot in slots:
        gradient = slot.master.grad
        if gradient is not None and not bool(torch.isfinite(values_of(gradient)).all()):
            return slot.name
    return "a parameter that is not the model's"
