"""Fits what a trainer knows by parameter name (gradients, layer types) to the names of a state's tensors.

A parameter "fc.weight" is the tensor "model.fc.weight" of a state {"model": ..., "optimizer": ...}: the
longest parameter name that ends a tensor's name, with the same shape, is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dynaquant_core.config import require
from dynaquant_core.methods.base import Hints
from dynaquant_core.quantize.layers import layer_type, layer_types
from dynaquant_core.state import Leaf, Owned, bare_name, copies_of
from dynaquant_core.store.fisher import Fisher

__all__ = ["buffer_names", "hints_for", "match_names", "stand_in_names"]

#: Last part of the key that torch puts a module's extra state under.
EXTRA = "_extra_state"


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


def buffer_names(tensors: Mapping[str, Tensor], model: Any | None) -> frozenset[str]:
    """Names of the tensors of a state that are buffers of the model: masks, tables, statistics.

    Nobody trains a buffer, so no training heals what is lost of it, and a mask that is not exactly zero is no
    mask.  A quality that is measured cannot tell either: a mask that leaks may lower the loss.

    Args:
        tensors: of a state, by name.
        model: a module, or name -> module; None: nothing is known to be a buffer.

    Example:
        >>> import torch
        >>> norm = torch.nn.BatchNorm1d(4)
        >>> sorted(buffer_names({f"model.{name}": value for name, value in norm.state_dict().items()}, norm))
        ['model.num_batches_tracked', 'model.running_mean', 'model.running_var']
    """
    modules = _modules(model)
    if modules is None:
        return frozenset()
    buffers = _shapes(modules, "named_buffers")
    if not buffers:
        return frozenset()
    # Parameters take part, so that a longer name of theirs goes before a shorter one of a buffer.
    owners = match_names(tensors, buffers | _shapes(modules))
    places = _places(modules, "buffers") - _places(modules, "parameters")  # whatever a wrapper calls them
    named = {name for name, owner in owners.items() if owner in buffers}
    return frozenset(named | {name for name, tensor in tensors.items() if _place(tensor) in places})


def stand_in_names(leaves: Iterable[Leaf], model: Any | None) -> frozenset[str]:
    """Names of tensors that lie beside the model's own in one dictionary and are not the model's.

    So are those of a module's extra state, however deep they lie (`torch.nn.Module.get_extra_state`).
    Somebody merged, cast or pruned them for the checkpoint.  What is lost of them shows in no measure of the
    model, so it must be nothing.  A dictionary without any tensor of the model (an average of the weights, a
    state that was copied whole) is another matter.

    Args:
        leaves: of a state.
        model: a module, or name -> module; None: nothing is known.

    Example:
        >>> import torch
        >>> from dynaquant_core.state import flatten
        >>> layer = torch.nn.Linear(2, 2)
        >>> state = {**layer.state_dict(), "weight": layer.weight.detach() + 1}
        >>> average = {"weight": torch.ones(2, 2)}
        >>> sorted(stand_in_names(flatten({"model": state, "average": average}).leaves, layer))
        ['model.weight']
    """
    modules = _modules(model)
    if modules is None:
        return frozenset()
    own = _places(modules, "parameters")
    seen = [leaf for leaf in leaves if leaf.source == "tensor" and not leaf.in_optimizer]
    beside = {leaf.path[:-1] for leaf in seen if _place(leaf.tensor) in own}
    kept = _places(modules, "buffers") | own
    apart = [leaf for leaf in seen if leaf.path[:-1] in beside or _is_extra(leaf)]
    return frozenset(leaf.name for leaf in apart if _place(leaf.tensor) not in kept)


def _is_extra(leaf: Leaf) -> bool:
    """Whether it lies in what a module's ``get_extra_state`` returned."""
    return any(str(key).endswith(EXTRA) for key in leaf.path)


def _places(modules: nn.Module | Mapping[str, nn.Module], kind: str) -> set[int | None]:
    """Where the memory of all "parameters", or "buffers", begins."""
    each = [modules] if isinstance(modules, nn.Module) else list(modules.values())
    return {_place(tensor) for module in each for tensor in getattr(module, kind)()} - {None}


def _place(tensor: Tensor) -> int | None:
    """Where its memory begins; None where it has none of its own to write into."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided and tensor.numel() else None


def match_names(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Tensor name -> the parameter name it carries; tensors without one are left out.

    Example:
        >>> import torch
        >>> match_names({"model.fc.weight": torch.zeros(2, 3)}, {"module.fc.weight": (2, 3), "weight": (3,)})
        {'model.fc.weight': 'module.fc.weight'}
    """
    bare = {bare_name(name): name for name in shapes}
    found = {}
    for name, tensor in tensors.items():
        for tail in _tails(bare_name(name)):
            if tail in bare and shapes[bare[tail]] == tuple(tensor.shape):
                found[name] = bare[tail]
                break
    return found


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
    modules = _modules(model)
    if modules is None:
        return types
    known, shapes = layer_types(modules), _shapes(modules)
    owners = match_names(tensors, {name: shapes[name] for name in known if name in shapes})
    return types | {name: known[owner] for name, owner in owners.items()}


def _modules(model: Any | None) -> nn.Module | dict[str, nn.Module] | None:
    if isinstance(model, Mapping):
        return {str(name): module for name, module in model.items() if isinstance(module, nn.Module)}
    return model if isinstance(model, nn.Module) else None


def _count(model: Any | None, trained: Iterable[Tensor]) -> int:
    """How many models there are: those by name of which an optimizer trains a matrix, none within another.

    An average of a model is trained by none.
    """
    modules = _modules(model)
    if not isinstance(modules, dict):
        return 1
    places = {_place(tensor) for tensor in trained if tensor.dim() > 1}
    those = [
        module
        for module in modules.values()
        if any(_place(weight) in places for weight in module.parameters())
    ]
    inner = {id(part) for module in those for part in module.modules() if part is not module}
    return max(1, len({id(module) for module in those} - inner))


def _shapes(
    modules: nn.Module | Mapping[str, nn.Module], kind: str = "named_parameters"
) -> dict[str, tuple[int, ...]]:
    """Shape by name of parameters (or "named_buffers"); several modules' names have "NAME." in front."""
    if isinstance(modules, nn.Module):
        named = getattr(modules, kind)(remove_duplicate=False)
        return {name: tuple(tensor.shape) for name, tensor in named}
    return {
        f"{key}.{name}": shape
        for key, module in modules.items()
        for name, shape in _shapes(module, kind).items()
    }


def _tails(name: str) -> list[str]:
    """The name and each of its dotted tails, longest first."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]
