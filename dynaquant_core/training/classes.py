"""Which of torch's classes an optimizer or a scheduler is of, noted beside its state, which does not say.

What the states hold often tells them apart (`kinds`); of Adam and RAdam, or of two schedulers of which one
has a setting more, it does not.  Classes of others are not compared: a kernel for another device, a wrapper
and a class of the user's may all go on from the same state.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from torch import optim
from torch.optim import Optimizer

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.training.kinds import kept_by_torch, way_round
from dynaquant_core.training.subject import Subject, full_name

__all__ = ["class_of", "classes_of", "require_same_class"]

#: Of schedulers that are nothing by themselves.
BASES: Final = frozenset({"LRScheduler", "_LRScheduler"})

#: Where a scheduler's class says how its rates go: one that has its own of these may be anything.
WAYS: Final = ("get_lr", "_get_closed_form_lr", "step", "state_dict", "load_state_dict")


def classes_of(subject: Subject) -> dict[str, Any]:
    """What `class_of` says of a run's optimizers, schedulers and those in extra, by their full name.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(1, 1)
        >>> classes_of(Subject(layer, {"g": optim.SGD(layer.parameters())}, extra={"ema": layer}))
        {'optimizer.g': 'SGD'}
    """
    parts: dict[str, Any] = {"optimizer": subject.optimizers, **subject.others}
    items = {full_name(part, name): item for part, named in parts.items() for name, item in named.items()}
    found = {name: class_of(item) for name, item in items.items()}
    return {name: one for name, one in found.items() if one is not None}


def class_of(item: object) -> Any:
    """The name of torch's class; of a scheduler made of others a list of its name and theirs.

    Adam whose weight decay is decoupled is AdamW, by whichever name it was made.

    Returns:
        None for what is neither, and for a class that goes its own way.

    Example:
        >>> import torch
        >>> sgd = optim.SGD([torch.zeros(1)], lr=0.1)
        >>> class_of(sgd), class_of(optim.lr_scheduler.ChainedScheduler([optim.lr_scheduler.StepLR(sgd, 3)]))
        ('SGD', ['ChainedScheduler', 'StepLR'])
    """
    if isinstance(item, Optimizer):
        kind = kept_by_torch(item)
        decoupled = kind is optim.Adam and all(
            group.get("decoupled_weight_decay", False) for group in item.param_groups
        )
        return "AdamW" if decoupled else kind and kind.__name__
    own = type(item)
    mine = next((base for base in own.__mro__ if base.__module__.startswith("torch.optim.")), None)
    if mine is None or mine.__name__ in BASES or any(_differ(own, mine, way) for way in WAYS):
        return None
    inner = getattr(item, "_schedulers", None)
    return [mine.__name__, *map(class_of, inner)] if isinstance(inner, (list, tuple)) else mine.__name__


def require_same_class(stored: Any, item: object, where: str, part: str) -> None:
    """Refuses the state of another of torch's classes; where either side's is not known nothing is.

    Args:
        stored: what `class_of` gave when the state was saved, or None.
        item: that would load it.
        where: its name in errors.
        part: its name for ``fresh``.

    Raises:
        StateMismatchError: nothing was changed.

    Example:
        >>> import torch
        >>> require_same_class("AdamW", optim.AdamW([torch.zeros(1)], fused=False), "optimizer", "optimizer")
    """
    now = class_of(item)
    if _is_another(stored, now):
        kind = "optimizer" if isinstance(item, Optimizer) else "scheduler"
        raise StateMismatchError(
            f"{where} is {_said(now)} and the checkpoint's {_said(stored)}: it was saved with another kind "
            f"of {kind}; build that one {way_round(part)}. Nothing was restored."
        )


def _differ(own: type, base: type, way: str) -> bool:
    """Whether a class has a method of its own; both may have none."""
    one, other = (getattr(kind, way, None) for kind in (own, base))
    return (one and inspect.unwrap(one)) is not (other and inspect.unwrap(other))


def _is_another(was: Any, now: Any) -> bool:
    if was is None or now is None:
        return False
    first, then = (one if isinstance(one, list) else [one] for one in (was, now))
    if first[:1] != then[:1]:
        return True
    return len(first) == len(then) and any(map(_is_another, first[1:], then[1:]))


def _said(one: Any) -> str:
    if not isinstance(one, list):
        return "another" if one is None else str(one)
    return f"{_said(one[0])} of {', '.join(map(_said, one[1:]))}"
