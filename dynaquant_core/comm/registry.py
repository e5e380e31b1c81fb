"""Names of compression techniques to what registers them: one visible table."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.config import nearest
from dynaquant_core.errors import ConfigError

__all__ = ["TECHNIQUES", "Compression", "register"]

#: Name -> "module:function" whose first argument is the DDP model and whose others are the settings.
TECHNIQUES: Mapping[str, str] = {"2bit": "dynaquant_core.comm.two_bit:register"}


class Compression(Protocol):
    """What a technique keeps between steps; goes into a checkpoint as ``extra``."""

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank: a tree that a checkpoint can hold."""
        ...

    def load_state_dict(self, state: Any, /) -> None:
        """Takes `state_dict` back."""
        ...


def register(ddp_model: DistributedDataParallel, settings: Mapping[str, Any]) -> Compression:
    """Compresses the gradients that a DDP model exchanges; every rank calls it with the same settings.

    Args:
        ddp_model: before its first backward pass.
        settings: ``{"compression": NAME, setting: value, ...}``; for "2bit" the settings of
            `two_bit.register`.

    Returns:
        The technique's state; give it to `Checkpointer(extra=...)`.

    Raises:
        ConfigError: no technique of that name, a setting that it does not have (the nearest is named), a
            value out of range, or a model that is not DDP's or has a communication hook already.
        Others as the technique's own ``register``.

    Example:
        >>> register(None, {"compression": "2bits"})
        Traceback (most recent call last):
        ...
        dynaquant_core.errors.ConfigError: comm: there is no compression '2bits'; did you mean '2bit'?
        >>> register(None, {"compression": "2bit", "treshold": 0.5})
        Traceback (most recent call last):
        ...
        dynaquant_core.errors.ConfigError: comm: '2bit' has no setting 'treshold'; did you mean 'threshold'?
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"comm: settings must be a mapping with the key 'compression', got {type(settings).__name__}."
        )
    options = dict(settings)
    name = options.pop("compression", None)
    if name is None:
        raise ConfigError(
            f"comm: settings need the key 'compression', one of {', '.join(map(repr, TECHNIQUES))}; "
            f"found the keys {list(settings)}."
        )
    if not isinstance(name, str) or name not in TECHNIQUES:
        raise ConfigError(f"comm: there is no compression {name!r}; {nearest(name, TECHNIQUES)}")
    module, _, attribute = TECHNIQUES[name].partition(":")
    technique = getattr(import_module(module), attribute)
    known = list(inspect.signature(technique).parameters)[1:]
    for key in options:
        if key not in known:
            raise ConfigError(f"comm: {name!r} has no setting {key!r}; {nearest(key, known)}")
    state: Compression = technique(ddp_model, **options)
    return state
