"""Fits what a trainer knows by parameter name (gradients, layer types) to the names of a state's tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from dynaquant_core.config import require
from dynaquant_core.methods.base import Hints
from dynaquant_core.quantize.layers import layer_type, layer_types
from dynaquant_core.state import Owned, address_of, copies_of
from dynaquant_core.store.fisher import Fisher
from dynaquant_core.store.models import match_names, modules_of, parameters_of, shapes_of

__all__ = ["hints_for", "idle_hints"]


def hints_for(
    tensors: Mapping[str, Tensor],
    roles: Mapping[str, str],
    gradients: Mapping[str, Tensor] | None,
    model: Any | None,
    owned: Mapping[str, Owned] | None = None,
) -> Hints:
    """The hints of one save.

    Args:
        tensors: those that the weights' method takes, by their name in the state.
        roles: role of every tensor of the state.
        gradients: EMA of the gradient by parameter name, or None.
        model: a module, or name -> module, for layer types; None: types by tensor name and shape.
        owned: what an optimizer holds of each weight.

    Raises:
        ConfigError: ``gradients`` is no mapping of names to dense tensors of real floating-point numbers.
    """
    known = _checked(gradients)
    owners = match_names(tensors, {name: tuple(value.shape) for name, value in known.items()})
    sizes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return Hints(
        gradients={name: known[owner] for name, owner in owners.items()},
        fisher=Fisher(owned or {}, copies_of(owned or {}, sizes)),
        layer_types=_types(tensors, model),
        roles=roles,
        moments=_moments(tensors, owned or {}),
        models=_count(model, [tensors[name] for name in owned or {} if name in tensors]),
    )


def idle_hints(
    tensors: Mapping[str, Tensor], gradients: Mapping[str, Tensor] | None, model: Any | None
) -> list[str]:
    """A sentence for each of ``gradients`` and ``model`` that says nothing of any tensor of a state.

    Args:
        tensors: of the state, by name; without any nothing is said.
        gradients: as `hints_for` takes them.
        model: a module, or name -> module, or None.

    Example:
        >>> import torch
        >>> lines = idle_hints({"fc.weight": torch.zeros(2)}, {"head.weight": torch.zeros(2)}, None)
        >>> [line.partition(":")[0] for line in lines]
        ['gradients']
    """
    lines = []
    for told, given in (("gradients", dict(gradients or {})), ("model", parameters_of(model))):
        places = {address_of(tensor) for tensor in given.values()} - {None}
        fits = match_names(tensors, {name: tuple(value.shape) for name, value in given.items()}) or any(
            address_of(tensor) in places for tensor in tensors.values()
        )
        if given and tensors and not fits:
            lines.append(
                f"{told}: no tensor of the state has the name and shape of one of them "
                f"({next(iter(given))!r}), so nothing is made of them."
            )
    return lines


def _checked(gradients: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Those that a method can look into."""
    good = gradients is None or isinstance(gradients, Mapping)
    require(good, f"gradients must be a mapping of parameter name to tensor, got {type(gradients).__name__}.")
    known = dict(gradients or {})
    for name, value in known.items():
        good = isinstance(name, str) and isinstance(value, Tensor)
        require(
            good, f"gradients must be tensors by parameter name, got {type(value).__name__} for {name!r:.80}."
        )
        good = value.layout == torch.strided and not value.is_meta and value.is_floating_point()
        require(
            good,
            f"gradients must be dense tensors of real floating-point numbers, got {value.dtype} of layout "
            f"{value.layout} on {value.device.type} for {name!r:.80}; leave that parameter out.",
        )
    return known


def _moments(tensors: Mapping[str, Tensor], owned: Mapping[str, Owned]) -> dict[str, dict[str, str]]:
    """Names of what an optimizer holds of each weight, as far as it is among ``tensors``."""
    names = {id(tensor): name for name, tensor in tensors.items()}
    found = {
        weight: {kind: names[id(tensor)] for kind, tensor in kinds.items() if id(tensor) in names}
        for weight, kinds in owned.items()
    }
    return {weight: kinds for weight, kinds in found.items() if kinds}


def _types(tensors: Mapping[str, Tensor], model: Any | None) -> dict[str, str]:
    """Layer types from the modules where they are known, else by name and shape."""
    types = {name: layer_type(name, tuple(tensor.shape)) for name, tensor in tensors.items()}
    modules = modules_of(model)
    if modules is None:
        return types
    known, shapes = layer_types(modules), shapes_of(modules)
    owners = match_names(tensors, {name: shapes[name] for name in known if name in shapes})
    return types | {name: known[owner] for name, owner in owners.items()}


def _count(model: Any | None, trained: Iterable[Tensor]) -> int:
    """How many models there are: those by name of which an optimizer trains a matrix, none within another.

    An average of a model is trained by none.
    """
    modules = modules_of(model)
    if not isinstance(modules, dict):
        return 1
    places = {address_of(tensor) for tensor in trained if tensor.dim() > 1}
    those = [
        module
        for module in modules.values()
        if any(address_of(weight) in places for weight in module.parameters())
    ]
    inner = {id(part) for module in those for part in module.modules() if part is not module}
    return max(1, len({id(module) for module in those} - inner))
