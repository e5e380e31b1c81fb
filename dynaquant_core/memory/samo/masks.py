"""Which weights stay: masks that are given, and magnitude pruning (arXiv 2302.05045, sec. 2)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dynaquant_core.config import require, require_number
from dynaquant_core.errors import ConfigError
from dynaquant_core.memory.samo.places import MOST, is_whole
from dynaquant_core.state.aliases import bare_name
from dynaquant_core.state.roles import matches

__all__ = ["Scope", "checked_masks", "magnitude_masks", "names_of", "prunable", "require_layer"]

Scope = Literal["layer", "global"]

_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)


def names_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters, each once, by its first name without the prefixes of wrappers."""
    return {bare_name(name): parameter for name, parameter in model.named_parameters()}


def prunable(
    model: nn.Module, names: Iterable[str], *, dense: Sequence[str] = (), embeddings: bool = False
) -> list[str]:
    """Names of the parameters that a pruner may prune: trained, and no vectors.

    A vector has one dimension of more than one element at most, as a norm's weight, the lengths of a weight
    norm (32, 1), a layer's scale (32, 1, 1) and a class token (1, 1, 32): its values stand for whole rows.

    Args:
        model: the model.
        names: of the parameters that an optimizer trains.
        dense: patterns (fnmatch, on a name, a module or the tail of either) of what stays whole.
        embeddings: whether tables of `torch.nn.Embedding` are pruned as well; a tied head is one of them.

    Example:
        >>> model = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 3), nn.Linear(3, 4))
        >>> prunable(model, names_of(model), dense=["2"])
        ['1.weight']
    """
    tables = {
        module.weight for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    parameters, aliases = names_of(model), _aliases(model)
    return [
        name
        for name in names
        if sum(size > 1 for size in parameters[name].shape) >= 2
        and parameters[name].dtype in _FLOATS
        and (embeddings or parameters[name] not in tables)
        and not any(matches(alias, dense) for alias in aliases[parameters[name]])
    ]


def magnitude_masks(
    weights: Mapping[str, Tensor], sparsity: float, *, scope: Scope = "layer"
) -> dict[str, Tensor]:
    """Masks of the weights of largest magnitude; ties go to the one that comes first.

    Args:
        weights: float, by name.
        sparsity: share that is pruned, in [0, 1): of each layer, or of all of them together.
        scope: "layer": n - round(sparsity * n) of every layer stay; "global": of all, with one threshold.
            Of every layer at least one weight stays.

    Returns:
        bool, of each weight's shape and device; True stays.

    Raises:
        ConfigError: ``sparsity`` or ``scope`` is out of range.

    Example:
        >>> magnitude_masks({"w": torch.tensor([[1.0, -4.0], [3.0, 2.0]])}, 0.5)["w"].tolist()
        [[False, True], [True, False]]
    """
    require_number("samo", "sparsity", sparsity, 0.0, 1.0, open_high=True)
    require(scope in ("layer", "global"), f"samo: scope must be 'layer' or 'global', got {scope!r}.")
    if scope == "layer":
        return {name: _largest(weight, sparsity) for name, weight in weights.items()}
    return _globally(weights, sparsity)


def _kept(size: int, sparsity: float) -> int:
    return max(1, size - round(sparsity * size))


def _largest(weight: Tensor, sparsity: float) -> Tensor:
    magnitude = weight.detach().abs().reshape(-1)
    order = torch.argsort(magnitude, descending=True, stable=True)
    mask = torch.zeros_like(magnitude, dtype=torch.bool)
    mask[order[: _kept(magnitude.numel(), sparsity)]] = True
    return mask.view(weight.shape)


def _globally(weights: Mapping[str, Tensor], sparsity: float) -> dict[str, Tensor]:
    """One threshold for all; the largest weight of a layer stays whatever it is."""
    magnitudes = [weight.detach().abs().reshape(-1).float().cpu() for weight in weights.values()]
    chosen = _largest(torch.cat(magnitudes), sparsity)
    masks = {}
    for (name, weight), magnitude, mask in zip(
        weights.items(), magnitudes, torch.split(chosen, [one.numel() for one in magnitudes]), strict=True
    ):
        mask[magnitude.argmax()] = True
        masks[name] = mask.view(weight.shape).to(weight.device)
    return masks


def checked_masks(masks: Any, model: nn.Module, trained: Iterable[str]) -> dict[str, Tensor]:
    """The user's masks by the parameters' first names.

    Args:
        masks: name -> bool tensor of the parameter's shape, True stays; a tied parameter goes by any name.
        model: the model.
        trained: first names of the parameters that the optimizer holds and that need gradients.

    Raises:
        ConfigError: no mapping, an unknown name, a wrong shape or dtype, a mask without a True, a parameter
            that is not trained.
    """
    require(
        isinstance(masks, Mapping), f"samo: mask must map names to bool tensors, got {type(masks).__name__}."
    )
    parameters, trained = names_of(model), set(trained)
    by_alias = {alias: one for one, aliases in _aliases(model).items() for alias in aliases}
    first = {parameter: name for name, parameter in parameters.items()}
    found: dict[str, Tensor] = {}
    for key, mask in masks.items():
        parameter = by_alias.get(bare_name(key)) if isinstance(key, str) else None
        if parameter is None:
            near = get_close_matches(str(key), by_alias, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "use the names of model.named_parameters()."
            raise ConfigError(f"samo: the model has no parameter {key!r} to mask; {hint}")
        name = first[parameter]
        require(
            name not in found, f"samo: {key!r} and another name mask the same (tied) parameter; give one."
        )
        require(name in trained, f"samo: {key!r} is frozen or not in the optimizer, so it takes no mask.")
        _require_mask(key, mask, parameter)
        found[name] = mask.detach()
    return found


def _require_mask(name: str, mask: Any, parameter: Tensor) -> None:
    require(
        isinstance(mask, Tensor),
        f"samo: the mask of {name!r} is {type(mask).__name__}, expected a bool tensor.",
    )
    require(
        mask.shape == parameter.shape,
        f"samo: the mask of {name!r} has shape {tuple(mask.shape)}, its parameter {tuple(parameter.shape)}.",
    )
    require(
        mask.dtype == torch.bool,
        f"samo: the mask of {name!r} is {mask.dtype}, expected torch.bool; use mask.bool() or mask != 0.",
    )
    require(
        mask.layout == torch.strided and not mask.is_meta,
        f"samo: the mask of {name!r} is sparse or has no memory (meta), expected a dense bool tensor.",
    )
    require(bool(mask.any()), f"samo: the mask of {name!r} keeps nothing; a layer needs one weight at least.")


def require_layer(name: str, parameter: Tensor) -> None:
    """Refuses a parameter that cannot be wrapped.

    Raises:
        ConfigError: integers, complex or double numbers, no memory, shared places, a shard, too many
        elements.
    """
    shown = str(parameter.dtype).removeprefix("torch.")
    require(
        not is_lazy(parameter),
        f"samo: parameter {name!r} has no shape yet (a lazy module); call the model on a batch first.",
    )
    require(
        parameter.dtype in _FLOATS,
        f"samo: parameter {name!r} is {shown}, expected float32, float16 or bfloat16; keep it out of the "
        "optimizer.",
    )
    require(
        parameter.numel() <= MOST,
        f"samo: parameter {name!r} has {parameter.numel()} elements, an int32 index numbers {MOST}; split "
        "the layer.",
    )
    require(
        not hasattr(parameter, "full_tensor"),
        f"samo: parameter {name!r} is a shard (DTensor); wrap a whole model.",
    )
    require(
        not parameter.is_meta,
        f"samo: parameter {name!r} has no memory yet (meta); materialise the model first.",
    )
    require(
        is_whole(parameter) and math.prod(parameter.shape) > 0,
        f"samo: parameter {name!r} is empty or lies in memory with gaps or overlaps; make it contiguous "
        "first.",
    )


def _aliases(model: nn.Module) -> dict[nn.Parameter, list[str]]:
    """All names of each parameter."""
    found: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(parameter, []).append(bare_name(name))
    return found
