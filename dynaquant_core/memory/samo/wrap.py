"""`wrap`: one line that puts a model and its optimizer under SAMO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from dynaquant_core.config import require, require_choice, require_number
from dynaquant_core.errors import ConfigError
from dynaquant_core.memory.samo.early_bird import EarlyBird
from dynaquant_core.memory.samo.guard import require_no_others
from dynaquant_core.memory.samo.handle import Samo
from dynaquant_core.memory.samo.masks import Scope, checked_masks, names_of, require_layer
from dynaquant_core.memory.samo.places import memory_order
from dynaquant_core.memory.samo.pruning import Pruning, dense_patterns
from dynaquant_core.memory.samo.reduce import Group, broadcast, differing, refusing, resolve
from dynaquant_core.memory.samo.swap import require_optimizer
from dynaquant_core.state.compressed import is_compressed

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
    moments exist only at unpruned places.  The optimizer stays the same object, so schedulers that hold it go
    on.

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
            bit for bit).
        loss_scale: multiply the loss with it (`Samo.scale`); steps whose gradients overflow are left out.
            None: none, or that of a `torch.amp.GradScaler`.
        group: ranks whose gradients are averaged: "world" (all, where torch.distributed is at work), a
            process group, or None.

    Raises:
        ConfigError: an argument, a mask, a parameter or the optimizer does not fit, on this rank or another;
            nothing was changed.
        torch.OutOfMemoryError: there is no memory for it; model and optimizer go on as they were (weights
            that were to be pruned may be rounded to ``dtype`` by then).

    Example:
        >>> model = nn.Linear(8, 4)
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        >>> handle = wrap(model, optimizer, sparsity=0.75, dtype=torch.float32)
        >>> model(torch.ones(2, 8)).sum().backward()
        >>> optimizer.step()
        >>> int(model.weight.count_nonzero()), [tuple(one.shape) for one in handle.parameters()]
        (8, [(8,), (4,)])
    """
    ranks = resolve(group)
    settings = {"dtype": dtype, "loss_scale": loss_scale, "group": ranks}
    try:
        names = _require(model, optimizer, settings)
        bird = _bird(pruner)
        require_choice("samo", "embeddings", embeddings, (True, False))
        share = DEFAULT_SPARSITY if sparsity is None else sparsity
        pruning = Pruning(share, scope, dense_patterns(dense, model), embeddings)
        given = _given(mask, model, names, pruning, plain=sparsity is None and bird is None)
    except ConfigError:
        if ranks is not None:
            refusing(True, ranks)  # the others wait to hear that all is well
        raise
    if ranks is not None:
        said = {"loss_scale": repr(loss_scale), "dtype": repr(dtype), "masks": _digest(given)}
        _join(model, names, {**said, **_said(pruning, bird)}, ranks)
    if given is None:
        given = {} if bird is not None else pruning.masks(names_of(model), model, names)
    return Samo(model, optimizer, names, given, pruning=pruning, bird=bird, settings=settings)


def _require(model: nn.Module, optimizer: Optimizer, settings: Mapping[str, Any]) -> list[str]:
    """Names of the trained parameters; raises ConfigError where these cannot be wrapped so."""
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
    dtype, loss_scale = settings["dtype"], settings["loss_scale"]
    require_choice("samo", "dtype", dtype, (torch.float16, torch.bfloat16, torch.float32))
    if loss_scale is not None:
        require_number("samo", "loss_scale", loss_scale, 2.0**-64, 2.0**64)
    if settings["group"] is not None or dtype != torch.float32 or loss_scale is not None:
        require_no_others(model, names)
    return names


def _given(
    mask: Mapping[str, Tensor] | None, model: nn.Module, names: list[str], pruning: Pruning, *, plain: bool
) -> dict[str, Tensor] | None:
    """The masks that were given, checked; None where they are to be found, and something can be pruned."""
    if mask is None:
        pruning.require_something(model, names)
        return None
    require(
        plain and not pruning.dense and not pruning.embeddings,
        "samo: give a mask, or how to find one (sparsity, pruner, dense, embeddings), not both.",
    )
    return checked_masks(mask, model, names)


def _bird(pruner: Any) -> EarlyBird | None:
    if isinstance(pruner, EarlyBird):
        return pruner
    require_choice("samo", "pruner", pruner, ("magnitude", "early_bird"))
    return EarlyBird() if pruner == "early_bird" else None


def _digest(masks: Mapping[str, Tensor] | None) -> str:
    digest = xxhash.xxh3_64()
    for name, mask in sorted((masks or {}).items()):
        digest.update(name.encode())
        digest.update(mask.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _said(pruning: Pruning, bird: EarlyBird | None) -> dict[str, str]:
    """How a mask is found, by the names of what `wrap` was told."""
    pruner = "magnitude" if bird is None else f"early bird {bird.distance} {bird.window}"
    return {"pruner": pruner, **{name: repr(value) for name, value in asdict(pruning).items()}}


def _join(model: nn.Module, names: list[str], said: Mapping[str, str], group: dist.ProcessGroup) -> None:
    """Ranks agree on all that shapes their buckets before anything is changed, then on weights.

    Buckets of other lengths would be an abort inside of the all-reduce, those of other weights an average of
    what does not belong together.
    """
    rank = refusing(False, group)
    require(
        rank is None,
        f"samo: rank {rank} of the group was given what cannot be wrapped, and its own error says why; "
        "nothing was changed.",
    )
    parameters = names_of(model)
    layers = [f"{name} {one.dtype} {memory_order(one)} {name in names}" for name, one in parameters.items()]
    layers += [f"{name} {one.dtype} {tuple(one.shape)}" for name, one in model.named_buffers()]
    waiting = sorted(name for name in names if parameters[name].grad is not None)
    told = {**said, "models or optimizers": "\n".join(layers), "waiting gradients": repr(waiting)}
    found = differing(
        {name: one.encode() for name, one in told.items()}, group, next(model.parameters()).device
    )
    require(
        not found,
        f"samo: the ranks were given different {', '.join(found)}; give all of them the same; nothing was "
        "changed.",
    )
    require(
        not waiting,
        f"samo: {', '.join(map(repr, waiting[:5]))} hold gradients, which over ranks may be each rank's own "
        "and of other weights; step and zero_grad() before samo.wrap; nothing was changed.",
    )
    broadcast(model, group)
