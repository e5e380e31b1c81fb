"""Puts a communication hook on a DDP model, once, and makes sure that the ranks mean the same."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.errors import ConfigError, StateMismatchError
from dynaquant_core.state import bare_name

__all__ = ["attach", "require_agreement", "require_free", "trained_parameters"]

DENSE_AGAIN = "wrap the model anew to change how its gradients travel"


def require_free(model: Any) -> DistributedDataParallel:
    """The DDP model, if gradients can be compressed by a hook on it; one that is compiled is taken out.

    Raises:
        ConfigError: it is no DDP model, or has a communication hook already.
    """
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper, which shares the reducer
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"comm: expected a model wrapped in torch.nn.parallel.DistributedDataParallel, got "
            f"{type(model).__name__}; wrap it first."
        )
    hooks = getattr(model, "_comm_hooks", [])
    # A copy of a model lists its original's hooks and has none: its reducer is a new one.
    hooks[:] = [(hook, state) for hook, state in hooks if getattr(state, "attached", True)]
    if hooks:
        raise ConfigError(
            f"comm: this DDP model has the communication hook {hooks[0][0].__qualname__!r} already and can "
            f"have only one; {DENSE_AGAIN}."
        )
    return model


def attach(model: DistributedDataParallel, state: object, hook: Callable[..., Any]) -> None:
    """Registers ``hook`` with ``state``.

    Raises:
        ConfigError: the model has a hook that was registered behind DDP's back; it stays as it was.
    """
    before = list(model._comm_hooks)
    try:
        model.register_comm_hook(state, hook)
    except RuntimeError as error:
        model._comm_hooks[:] = before
        raise ConfigError(f"comm: DDP refused the communication hook ({error}); {DENSE_AGAIN}.") from error


def trained_parameters(model: nn.Module, ignored: Collection[str] = ()) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by their names without what wrappers put into them.

    Names that would then be those of several parameters stay as they are.

    Args:
        model: whose parameters.
        ignored: names of those to leave out, as DDP's reducer knows them: with a dot in front where they
            lie in no submodule.

    Example:
        >>> net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).requires_grad_(False))
        >>> list(trained_parameters(net)), list(trained_parameters(net, ["0.bias"]))
        (['0.weight', '0.bias'], ['0.weight'])
    """
    named = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (name if "." in name else f".{name}") not in ignored
    }
    short = Counter(map(bare_name, named))
    return {
        bare_name(name) if short[bare_name(name)] == 1 else name: parameter
        for name, parameter in named.items()
    }


def require_agreement(
    what: bytes | None, group: distributed.ProcessGroup, device: torch.device, otherwise: str
) -> None:
    """Compares ``what`` over the ranks of a group; collective.

    Args:
        what: compared; None: this rank is not, and hears what is found of the others.
        group: the ranks.
        device: one that the group can send from.
        otherwise: the error behind "ranks [...] ", a sentence with what to do, in which "{first}" is the rank
            that the others are compared with.

    Raises:
        StateMismatchError: on every rank, naming those that differ from the first.
    """
    digest = hashlib.sha256(what or b"").digest()[:7]
    said = int.from_bytes(digest, "little") if what is not None else -1
    mine = torch.tensor([said], dtype=torch.int64, device=device)
    all_of_them: list[Tensor] = [torch.empty_like(mine) for _ in range(group.size())]
    distributed.all_gather(all_of_them, mine, group=group)
    values = {rank: int(value) for rank, value in enumerate(all_of_them) if int(value) >= 0}
    first = next(iter(values), 0)
    other = [rank for rank, value in values.items() if value != values[first]]
    if other:
        raise StateMismatchError(f"comm: ranks {other} {otherwise.replace('{first}', str(first))}")
