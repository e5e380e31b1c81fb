"""The state of a training run as one tree, whose tensors are the live ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from dynaquant_core.training.names import canonical_name, parameter_names
from dynaquant_core.training.optimizers import by_name
from dynaquant_core.training.rng import rng_state
from dynaquant_core.training.subject import Subject, named
from dynaquant_core.training.versions import versions_of

__all__ = ["capture", "model_state"]

Item = TypeVar("Item")


def capture(subject: Subject, step: int) -> dict[str, Any]:
    """Everything that a resumed run needs to go on as if it had not stopped.

    Nothing is copied, and nothing of the run is changed: the tree's tensors are the live ones.

    Returns:
        ``{"step", "model", "versions", "optimizer", "scheduler", "scaler", "extra", "rng"}``, without those
        not given.  Names are free of wrappers' prefixes; optimizer state is by parameter name; a mapping of
        several objects is a mapping of their states.  ``versions`` is what the models' state dictionaries
        say beside their tensors (`versions_of`).

    Example:
        >>> tree = capture(Subject(nn.Linear(2, 1)), 20)
        >>> list(tree), tree["step"], list(tree["model"])
        (['step', 'model', 'versions', 'rng'], 20, ['weight', 'bias'])
    """
    names = parameter_names(subject.models)
    states = {name: (model, model.state_dict()) for name, model in subject.models.items()}
    tree: dict[str, Any] = {
        "step": step,
        "model": _each(states, lambda pair: _canonical(*pair)),
        "versions": _each(states, lambda pair: versions_of(*pair)),
    }
    if subject.optimizer is not None:
        tree["optimizer"] = _each(subject.optimizers, lambda optimizer: by_name(optimizer, names))
    if subject.scheduler is not None:
        tree["scheduler"] = _each(named(subject.scheduler), lambda item: plain(item.state_dict()))
    if subject.scaler is not None:
        tree["scaler"] = plain(subject.scaler.state_dict())
    if subject.extra:
        tree["extra"] = {name: plain(item.state_dict()) for name, item in subject.extra.items()}
    tree["rng"] = rng_state()
    return tree


def model_state(model: nn.Module) -> dict[str, Any]:
    """The model's ``state_dict`` under canonical names, its tensors the model's own.

    The names are those of `torch.distributed.checkpoint.state_dict.get_model_state_dict`, which is not called
    because it refuses models without tensors and costs a second to import.

    Example:
        >>> import torch
        >>> list(model_state(torch.compile(nn.Linear(1, 1), backend="eager")))
        ['weight', 'bias']
    """
    return _canonical(model, model.state_dict())


def _canonical(model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    return {canonical_name(model, key): value for key, value in state.items()}


def plain(state: Any) -> Any:
    """Counters (`MultiStepLR` keeps one) as plain dictionaries; `restore` makes them counters again."""
    if isinstance(state, Counter):
        return dict(state)
    if type(state) is dict:
        return {key: plain(value) for key, value in state.items()}
    if type(state) is list:
        return [plain(value) for value in state]
    return state


def _each(objects: Mapping[str, Item], state: Callable[[Item], Any]) -> Any:
    """The state of a single object (named ""), or of several by name."""
    if set(objects) == {""}:
        return state(objects[""])
    return {name: state(item) for name, item in objects.items()}
