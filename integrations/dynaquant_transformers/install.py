"""Puts the stand-ins of `training` around the Trainer's methods, once a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Final

from transformers import Trainer

from dynaquant_transformers.support import require_known_trainer
from dynaquant_transformers.training import WITHIN, train

__all__ = ["STAND_INS", "install"]

#: Method of the Trainer -> what stands in for it.
STAND_INS: Final[Mapping[str, Callable[..., Any]]] = {"train": train, **WITHIN}

MARK = "_dynaquant"


def install(trainer: type[Any] = Trainer) -> None:
    """Wraps the class's methods; again, it does nothing.

    The wrappers act on trainers that hold a `DynaQuantCallback` and on folders that bear our marker; all else
    goes straight to the methods.

    Raises:
        DependencyError: the methods are not the ones that this plugin was written for.
    """
    require_known_trainer(trainer)
    for name, stand_in in STAND_INS.items():
        method = getattr(trainer, name)
        if not hasattr(method, MARK):
            setattr(trainer, name, _around(method, stand_in))


def _around(method: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return stand_in(self, partial(method, self), *args, **kwargs)

    setattr(wrapper, MARK, True)
    return wrapper
