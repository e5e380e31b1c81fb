"""The state of a training run as one tree, whose tensors are the live ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from dynaquant_core.errors import DynaQuantError, SaveError
from dynaquant_core.handlers import by_handler
from dynaquant_core.training.classes import classes_of
from dynaquant_core.training.forms import plain, without_functions
from dynaquant_core.training.names import canonical_name, parameter_names
from dynaquant_core.training.optimizers import by_name
from dynaquant_core.training.rng import own_rank, rng_state
from dynaquant_core.training.subject import Subject, full_name, named
from dynaquant_core.training.versions import versions_of

__all__ = ["CLASSES", "EXTRA_VERSIONS", "capture", "model_state"]

CLASSES = "classes"
EXTRA_VERSIONS = "extra_versions"

Item = TypeVar("Item")


def capture(subject: Subject, step: int) -> dict[str, Any]:
    """Everything that a resumed run needs to go on as if it had not stopped.

    Nothing is copied, and nothing of the run is changed: the tree's tensors are the live ones.

    Returns:
        ``{"step", "model", "versions", "classes", "optimizer", "scheduler", "scaler", "extra",
        "extra_versions", "rng"}``, without those not given.  Names are free of wrappers' prefixes, those in
        ``extra`` apart; optimizer state is by parameter name; a mapping of several objects is a mapping of
        their states.  ``versions`` is what the models' state dictionaries say beside their tensors
        (`versions_of`), and ``extra_versions`` the same of the modules in ``extra``; ``classes`` is of which
        of torch's classes optimizers and schedulers are (`classes_of`).  Where there are ranks ``rng`` says
        whose streams it holds (``rank``).

    Raises:
        SaveError: an object's ``state_dict`` raised; names it.

    Example:
        >>> tree = capture(Subject(nn.Linear(2, 1)), 20)
        >>> list(tree), tree["step"], list(tree["model"])
        (['step', 'model', 'versions', 'rng'], 20, ['weight', 'bias'])
    """
    names = parameter_names(subject.models)
    states = {
        name: (model, _asked("model", name, model.state_dict)) for name, model in subject.models.items()
    }
    tree: dict[str, Any] = {
        "step": step,
        "model": _one_or_all({name: _canonical(*pair) for name, pair in states.items()}),
        "versions": _one_or_all({name: versions_of(*pair) for name, pair in states.items()}),
    }
    classes = classes_of(subject)
    if classes:
        tree[CLASSES] = classes
    if subject.optimizer is not None:
        tree["optimizer"] = _one_or_all(
            {
                name: _asked("optimizer", name, partial(by_name, optimizer, names))
                for name, optimizer in subject.optimizers.items()
            }
        )
    if subject.scheduler is not None:
        schedulers = named(subject.scheduler)
        tree["scheduler"] = _one_or_all(
            {
                name: plain(without_functions(_asked("scheduler", name, item.state_dict)))
                for name, item in schedulers.items()
            }
        )
    if subject.scaler is not None:
        tree["scaler"] = _one_or_all(
            {
                name: plain(_asked("scaler", name, item.state_dict))
                for name, item in named(subject.scaler).items()
            }
        )
    if subject.extra:
        extra = {name: _asked("extra", name, item.state_dict) for name, item in subject.extra.items()}
        modules = {name: item for name, item in subject.extra.items() if isinstance(item, nn.Module)}
        tree["extra"] = {
            name: plain(without_functions(state) if isinstance(subject.extra[name], LRScheduler) else state)
            for name, state in extra.items()
        }
        if modules:
            tree[EXTRA_VERSIONS] = {
                name: versions_of(item, extra[name], canonical=False) for name, item in modules.items()
            }
    rank = own_rank()
    tree["rng"] = rng_state() | ({} if rank is None else {"rank": rank})
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


def _asked(part: str, name: str, state: Callable[[], Item]) -> Item:
    """What one of the user's objects says its state is."""
    try:
        return state()
    except DynaQuantError:
        raise
    except Exception as error:
        if by_handler(error):
            raise
        raise SaveError(
            f"{full_name(part, name)} could not tell its state ({type(error).__name__}: {error}); nothing "
            f"was saved."
        ) from error


def _canonical(model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    return {canonical_name(model, key): value for key, value in state.items()}


def _one_or_all(states: Mapping[str, Any]) -> Any:
    """The state of a single object (named ""), or of several by name."""
    return states[""] if set(states) == {""} else states
