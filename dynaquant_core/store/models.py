"""What a model says of a state's tensors: which are its buffers, which are frozen, which are not its own.

A parameter "fc.weight" is the tensor "model.fc.weight" of a state {"model": ..., "optimizer": ...}: the
longest parameter name that ends a tensor's name, with the same shape, is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from dynaquant_core.config import require
from dynaquant_core.state import Leaf, address_of, bare_name
from dynaquant_core.state.memory import Address

__all__ = [
    "buffer_names",
    "frozen_names",
    "match_names",
    "modules_of",
    "parameters_of",
    "shapes_of",
    "stand_in_names",
]

Modules = nn.Module | Mapping[str, nn.Module]

#: Last part of the key that torch puts a module's extra state under.
EXTRA = "_extra_state"


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
    modules = modules_of(model)
    if modules is None:
        return frozenset()
    buffers = shapes_of(modules, "named_buffers")
    if not buffers:
        return frozenset()
    # Parameters take part, so that a longer name of theirs goes before a shorter one of a buffer.
    owners = match_names(tensors, buffers | shapes_of(modules))
    places = _places(modules, "buffers") - _places(modules, "parameters")  # whatever a wrapper calls them
    named = {name for name, owner in owners.items() if owner in buffers}
    return frozenset(named | {name for name, tensor in tensors.items() if address_of(tensor) in places})


def frozen_names(tensors: Mapping[str, Tensor], model: Any | None) -> frozenset[str]:
    """Names of the tensors of a state that are parameters of the model which need no gradient.

    Args:
        tensors: of a state, by name.
        model: a module, or name -> module; None, or one without any parameter that needs a gradient, which is
            not the one that is trained: nothing is known.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(2, 2)
        >>> _ = layer.bias.requires_grad_(False)
        >>> sorted(frozen_names({"model.bias": layer.bias.detach(), "model.weight": layer.weight}, layer))
        ['model.bias']
    """
    parameters = parameters_of(model)
    frozen = {name for name, parameter in parameters.items() if not parameter.requires_grad}
    if not frozen or len(frozen) == len(parameters):
        return frozenset()
    owners = match_names(tensors, {name: tuple(tensor.shape) for name, tensor in parameters.items()})
    places = {address_of(parameters[name]) for name in frozen} - {None}
    named = {name for name, owner in owners.items() if owner in frozen}
    return frozenset(named | {name for name, tensor in tensors.items() if address_of(tensor) in places})


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
    modules = modules_of(model)
    if modules is None:
        return frozenset()
    own = _places(modules, "parameters")
    seen = [leaf for leaf in leaves if leaf.source == "tensor" and not leaf.in_optimizer]
    beside = {leaf.path[:-1] for leaf in seen if address_of(leaf.tensor) in own}
    kept = _places(modules, "buffers") | own
    apart = [leaf for leaf in seen if leaf.path[:-1] in beside or _is_extra(leaf)]
    return frozenset(leaf.name for leaf in apart if address_of(leaf.tensor) not in kept)


def _is_extra(leaf: Leaf) -> bool:
    """Whether it lies in what a module's ``get_extra_state`` returned."""
    return any(str(key).endswith(EXTRA) for key in leaf.path)


def _places(modules: Modules, kind: str) -> set[Address | None]:
    """Where all "parameters", or "buffers", lie."""
    each = [modules] if isinstance(modules, nn.Module) else list(modules.values())
    return {address_of(tensor) for module in each for tensor in getattr(module, kind)()} - {None}


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


def modules_of(model: Any | None) -> nn.Module | dict[str, nn.Module] | None:
    """The modules of what was given as a model; None where none was.

    Raises:
        ConfigError: it is something else, which would tell nothing: buffers would be stored as weights are.

    Example:
        >>> import torch
        >>> modules_of({"net": torch.nn.Linear(2, 2)})
        {'net': Linear(in_features=2, out_features=2, bias=True)}
    """
    if model is None or isinstance(model, nn.Module):
        return model
    expected = "model must be a module, or a mapping of name to module"
    require(isinstance(model, Mapping), f"{expected}, got {type(model).__name__}; give the model itself.")
    for name, module in model.items():
        told = f"{expected}, got {type(module).__name__} for {name!r}; give the model itself, not its state."
        require(isinstance(module, nn.Module), told)
    return {str(name): module for name, module in model.items()}


def parameters_of(model: Any | None) -> dict[str, Tensor]:
    """The model's parameters by name; several modules' names have "NAME." in front."""
    modules = modules_of(model)
    return {} if modules is None else _named(modules, "named_parameters")


def shapes_of(modules: Modules, kind: str = "named_parameters") -> dict[str, tuple[int, ...]]:
    """Shape by name of parameters (or "named_buffers"), named as by `parameters_of`."""
    return {name: tuple(tensor.shape) for name, tensor in _named(modules, kind).items()}


def _named(modules: Modules, kind: str) -> dict[str, Tensor]:
    if isinstance(modules, nn.Module):
        return dict(getattr(modules, kind)(remove_duplicate=False))
    return {
        f"{key}.{name}": tensor
        for key, module in modules.items()
        for name, tensor in _named(module, kind).items()
    }


def _tails(name: str) -> list[str]:
    """The name and each of its dotted tails, longest first."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]
