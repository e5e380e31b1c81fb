"""All ranks hold what the first one holds: weights, buffers, and what optimizers remember."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from dynaquant_core.comm.attach import require_agreement
from dynaquant_core.config import require
from dynaquant_core.errors import ConfigError, DynaQuantError
from dynaquant_core.state import bytes_of
from dynaquant_core.state.compressed import is_compressed
from dynaquant_core.state.sharded import is_sharded

__all__ = ["from_first_rank"]


def from_first_rank(*holders: nn.Module | Optimizer, group: distributed.ProcessGroup | None = None) -> None:
    """Gives every rank the first one's parameters, buffers and optimizer states; collective.

    For ranks that have restored checkpoints of their own: each has rounded its weights and moments in its own
    way, and data parallelism never compares them again.  Call it after ``restore()`` and before the first
    forward pass, whether there was anything to restore or not.  Nothing else changes: residuals, random
    streams and schedules stay each rank's own.

    Args:
        holders: the model, the optimizer, and whatever else is to be the same (an average of the weights), in
            one order on every rank.  What DDP was told to ignore is left alone; an optimizer whose
            ``state_dict()`` gives copies takes the first one's by its ``load_state_dict()``, on every rank.
        group: the ranks; None: those of the first DDP model that is given, or all.

    Raises:
        ConfigError: torch.distributed is not set up, something else than modules and optimizers is given, a
            model that is under `samo.wrap`, or an optimizer whose state is in shards or cannot be told.
        StateMismatchError: on every rank, where they hold tensors of other names, shapes or dtypes, or
            optimizers that have done other steps; nothing was changed.

    Example:
        >>> store = distributed.HashStore()
        >>> distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> model = nn.Linear(2, 1)  # or what DDP makes of it
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> from_first_rank(model, optimizer)
        >>> distributed.destroy_process_group()
    """
    _require(holders)
    ranks = group or _group_of(holders)
    held = [_held(holder) for holder in holders]
    leaves = [leaf for number, tree in enumerate(held) for leaf in _leaves(tree, f"{number}")]
    tensors = [leaf for _, leaf in leaves if isinstance(leaf, Tensor) and leaf.numel()]
    device = next((one.device for one in tensors if one.device.type != "cpu"), torch.device("cpu"))
    require_agreement(
        repr([(path, _said(leaf)) for path, leaf in leaves]).encode(),
        ranks,
        device,
        "hold tensors of other names or shapes, or optimizers of other steps or settings, than rank 0; build "
        "all of them alike and restore them from checkpoints of one step; nothing was changed.",
    )
    source = distributed.get_global_rank(ranks, 0)
    with torch.no_grad():
        for tensor in tensors:
            carried = bytes_of(tensor).to(device)  # counts of steps lie on the host, where NCCL does not look
            distributed.broadcast(carried, source, ranks)
            if ranks.rank() != 0:
                tensor.copy_(carried.to(tensor.device).view(tensor.dtype).view(tensor.shape))
    for holder, tree in zip(holders, held, strict=True):
        if isinstance(holder, Optimizer) and not _is_live(tree, holder):
            holder.load_state_dict(dict(tree))  # the first rank, too: loading may round


def _require(holders: tuple[Any, ...]) -> None:
    ready = distributed.is_available() and distributed.is_initialized()
    require(ready, "comm: from_first_rank needs torch.distributed; call init_process_group first.")
    require(bool(holders), "comm: from_first_rank was given nothing; give it the model and the optimizer.")
    for holder in holders:
        require(
            isinstance(holder, nn.Module | Optimizer),
            f"comm: from_first_rank takes modules and optimizers, got {type(holder).__name__}.",
        )
        require(
            not (isinstance(holder, nn.Module) and is_compressed(holder)),
            "comm: from_first_rank was given a model under samo.wrap, whose optimizer holds its weights; "
            "restore one checkpoint on all ranks instead.",
        )
        require(
            not (isinstance(holder, Optimizer) and is_sharded(holder)),
            f"comm: from_first_rank was given a {type(holder).__name__}, which keeps the state of some "
            "parameters on each rank, so no rank has another's to take; give it the model alone.",
        )


def _group_of(holders: tuple[Any, ...]) -> distributed.ProcessGroup:
    for holder in holders:
        model = getattr(holder, "_orig_mod", holder)  # torch.compile's wrapper
        if isinstance(model, DistributedDataParallel):
            return model.process_group
    whole = distributed.group.WORLD
    assert whole is not None
    return whole


def _held(holder: nn.Module | Optimizer) -> Mapping[str, Any]:
    """Tensors and plain values, by name: a module's own; those that an optimizer tells."""
    if isinstance(holder, Optimizer):
        return _state_of(holder)
    model = getattr(holder, "_orig_mod", holder)
    ignored: set[str] = set()
    if isinstance(model, DistributedDataParallel):
        ignored, model = set(model.parameters_to_ignore), model.module
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    # DDP's own names begin with a dot where a tensor lies in no submodule.
    return {name: one for name, one in named.items() if ignored.isdisjoint((name, f".{name}"))}


def _state_of(optimizer: Optimizer) -> Mapping[str, Any]:
    try:
        return optimizer.state_dict()
    except DynaQuantError:
        raise
    except Exception as error:
        name = type(optimizer).__name__
        raise ConfigError(
            f"comm: {name} could not tell its state ({type(error).__name__}: {error}); give "
            "from_first_rank the optimizer inside it, or one whose state_dict() works."
        ) from error


def _is_live(state: Mapping[str, Any], optimizer: Optimizer) -> bool:
    """Whether what an optimizer tells are the tensors that it works with."""
    own = [*getattr(optimizer, "state", {}).values(), *optimizer.param_groups]
    live = {id(leaf) for _, leaf in _leaves(own, "")}
    return all(id(leaf) in live for _, leaf in _leaves(state, "") if isinstance(leaf, Tensor))


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Tensors and plain values of a tree with where they lie, in an order that all ranks have."""
    if isinstance(tree, Mapping):
        for key in sorted(tree, key=str):
            yield from _leaves(tree[key], f"{path}.{key}")
    elif isinstance(tree, list | tuple):
        for number, item in enumerate(tree):
            yield from _leaves(item, f"{path}.{number}")
    elif isinstance(tree, Tensor | int | float | bool | str | None):
        yield path, tree


def _said(leaf: Any) -> Any:
    return (str(leaf.dtype), tuple(leaf.shape)) if isinstance(leaf, Tensor) else leaf
