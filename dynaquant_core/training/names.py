"""Names of a model's tensors that do not depend on how the model is wrapped."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["canonical_keys", "canonical_name", "parameter_names"]

#: Submodule names that activation checkpointing and `torch.compile` put in between.
WRAPPED = frozenset({"_checkpoint_wrapped_module", "_orig_mod"})


def canonical_name(model: nn.Module, key: str) -> str:
    """The name of a tensor without the prefixes of `torch.compile`, DDP and activation checkpointing.

    It is the name that `torch.distributed.checkpoint.state_dict` gives the tensor; that package has no
    public function for one name.

    Args:
        model: the module, wrapped or not, whose ``state_dict`` or ``named_parameters`` holds ``key``.
        key: a dotted name there.

    Example:
        >>> import torch
        >>> canonical_name(torch.compile(nn.Linear(2, 2), backend="eager"), "_orig_mod.weight")
        'weight'
    """
    kept = []
    current: object = model
    for part in key.split("."):
        inserted = part in WRAPPED or (part == "module" and isinstance(current, DistributedDataParallel))
        if not inserted:
            kept.append(part)
        current = getattr(current, part, None)
    return ".".join(kept)


def canonical_keys(model: nn.Module) -> dict[str, str]:
    """The model's own ``state_dict`` keys, by canonical name."""
    return {canonical_name(model, key): key for key in model.state_dict()}


def parameter_names(models: Mapping[str, nn.Module]) -> dict[Tensor, tuple[str, ...]]:
    """All canonical names of each parameter; a tied one has several, the first is where it appears first.

    Args:
        models: by name; the names of several models start with theirs and a dot, that of a single one
            (named "") do not.

    Example:
        >>> a, b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        >>> b.weight = a.weight
        >>> list(parameter_names({"": nn.Sequential(a, b)}).values())
        [('0.weight', '1.weight')]
    """
    found: dict[Tensor, tuple[str, ...]] = {}
    for prefix, model in models.items():
        start = f"{prefix}." if prefix else ""
        for key, parameter in model.named_parameters(remove_duplicate=False):
            name = start + canonical_name(model, key)
            found[parameter] = (*found.get(parameter, ()), name)
    return found
