"""What is being trained: the objects whose state a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import nn
from torch.optim import Optimizer

from dynaquant_core.errors import ConfigError, DynaQuantError, StateMismatchError
from dynaquant_core.training.streams import stateful

__all__ = ["Stateful", "Subject", "full_name", "named", "own_state", "require_parts"]

Item = TypeVar("Item")


@runtime_checkable
class Stateful(Protocol):
    """Anything that gives its state as a tree and takes it back."""

    def state_dict(self) -> Any:
        """The state: a tree of objects that a checkpoint can hold."""
        ...

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Takes what `state_dict` gave."""
        ...


@dataclass(frozen=True, slots=True)
class Subject:
    """The objects of one training run; model, optimizer, scheduler and scaler may be mappings of several.

    Args:
        model: a module, or name -> module.
        optimizer: None, an optimizer, or name -> optimizer.
        scheduler: None, an object with ``state_dict`` and ``load_state_dict``, or name -> object.
        scaler: None, a gradient scaler, or name -> scaler.
        extra: name -> object with ``state_dict`` and ``load_state_dict``, or a random generator (`Stream`).

    Raises:
        ConfigError: something is not what it should be; says which.

    Example:
        >>> Subject(nn.Linear(2, 2), extra={"data": 3})
        Traceback (most recent call last):
        ...
        dynaquant_core.errors.ConfigError: extra['data'] is int: it needs state_dict and load_state_dict.
    """

    model: nn.Module | Mapping[str, nn.Module]
    optimizer: Optimizer | Mapping[str, Optimizer] | None = None
    scheduler: Stateful | Mapping[str, Stateful] | None = None
    scaler: Stateful | Mapping[str, Stateful] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require(self.models, nn.Module, "model", "it must be a torch.nn.Module")
        _require(self.optimizers, Optimizer, "optimizer", "it must be a torch.optim.Optimizer")
        if not isinstance(self.extra, Mapping):
            raise ConfigError(
                f"extra is {type(self.extra).__name__}: it must be a mapping of name to object."
            )
        if any(stateful(item) is not item for item in self.extra.values()):
            object.__setattr__(self, "extra", {name: stateful(item) for name, item in self.extra.items()})
        needed = "it needs state_dict and load_state_dict"
        _require(named(self.scheduler), Stateful, "scheduler", needed)
        _require(named(self.scaler), Stateful, "scaler", needed)
        _require(dict(self.extra), Stateful, "extra", needed)
        if not self.models:
            raise ConfigError("model is an empty mapping: give at least one module.")

    @property
    def models(self) -> dict[str, nn.Module]:
        """Name -> module; a single one is named ""."""
        return named(self.model)

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """Name -> optimizer; a single one is named ""."""
        return named(self.optimizer)

    @property
    def others(self) -> dict[str, dict[str, Stateful]]:
        """Part ("scheduler", "scaler", "extra") -> name -> object; a single one is named ""."""
        return {
            "scheduler": named(self.scheduler),
            "scaler": named(self.scaler),
            "extra": dict(self.extra),
        }


def full_name(part: str, name: str) -> str:
    """What a user calls one object of a part.

    Example:
        >>> full_name("scheduler", ""), full_name("extra", "ema")
        ('scheduler', 'extra.ema')
    """
    return f"{part}.{name}" if name else part


def require_parts(subject: Subject, names: str | Iterable[str]) -> frozenset[str]:
    """The names, if each is one of the run's schedulers, scaler or extra.

    Args:
        subject: the run.
        names: as `full_name` gives them; a text is one name.

    Raises:
        ConfigError: one is not; lists those that the run has.
    """
    asked = [names] if isinstance(names, str) else names
    if not isinstance(asked, Iterable):
        raise ConfigError(f"fresh is {type(names).__name__}: it must be a sequence of names.")
    asked = list(asked)
    parts = [full_name(part, name) for part, objects in subject.others.items() for name in objects]
    strange = [name for name in asked if name not in parts]
    if strange:
        has = f"the run has {', '.join(parts)}" if parts else "the run has no scheduler, scaler or extra"
        raise ConfigError(f"fresh: {', '.join(map(repr, strange))} is no part that may begin anew; {has}.")
    return frozenset(asked)


def named(one_or_many: Item | Mapping[str, Item] | None) -> dict[str, Item]:
    """A mapping as it is, one object under the name "", None as no object."""
    if one_or_many is None:
        return {}
    return dict(one_or_many) if isinstance(one_or_many, Mapping) else {"": one_or_many}


def own_state(item: Any, where: str) -> Any:
    """What an object says its state is, for a comparison with what is stored.

    Args:
        item: has ``state_dict``.
        where: its name in the error.

    Raises:
        StateMismatchError: its ``state_dict`` raised.

    Example:
        >>> list(own_state(nn.Linear(2, 2), "model"))
        ['weight', 'bias']
    """
    try:
        return item.state_dict()
    except DynaQuantError:
        raise
    except Exception as error:
        raise StateMismatchError(
            f"{where} could not tell its state, with which the stored one is compared "
            f"({type(error).__name__}: {error}); make its state_dict() work before the first step. Nothing "
            f"was restored."
        ) from error


def _require(objects: Mapping[str, Any], kind: type, argument: str, needed: str) -> None:
    for name, value in objects.items():
        if not isinstance(name, str):
            raise ConfigError(f"{argument}: the name {name!r} must be text.")
        if not isinstance(value, kind):
            where = f"{argument}[{name!r}]" if name else argument
            raise ConfigError(f"{where} is {type(value).__name__}: {needed}.")
