"""Calling the user's evaluate without letting it change anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

from dynaquant_core.errors import ConfigError, EvaluationError
from dynaquant_core.handlers import by_handler
from dynaquant_core.search.quality import Quality
from dynaquant_core.training.guard import insist, untouched

__all__ = ["Evaluation"]

#: By which DDP decides in a forward pass whether rank 0's buffers go to all.
FORWARD_SYNC = "require_forward_param_sync"

#: By which it decides there whether to ask all ranks for their inputs, and what it holds outside of `Join`.
JOIN = "_join_config"
NOT_JOINING = SimpleNamespace(enable=False, throw_on_early_termination=False, is_first_joinable=False)


class Evaluation:
    """Runs ``evaluate`` in evaluation mode, without gradients; flags, buffers and random streams come back.

    Every submodule's training flag, every buffer, every tensor that is a plain attribute of a submodule and
    every global random stream is as before, bit for bit (`guard.untouched`).  Whatever else ``evaluate``
    changes stays changed: parameters, their ``requires_grad`` and ``.grad``, lists and dictionaries of
    tensors, the default dtype and other settings of torch.

    Every call begins from the same random streams, so an evaluation that draws numbers draws the same ones
    for every candidate.  Under DDP no forward pass broadcasts buffers meanwhile, nor asks inside of `Join`
    who is done, whoever holds the module: this rank measures alone, and the others train on.

    Args:
        evaluate: takes nothing, or the model as given to the Checkpointer; returns a number, or one a batch.
        model: the model, or a mapping of several.
        beside: further modules that ``evaluate`` may run, as an average of the weights.

    Attributes:
        models: whose flags and buffers are looked after.

    Raises:
        ConfigError: ``evaluate`` cannot be called, or wants more than one argument.

    Example:
        >>> norm = nn.BatchNorm1d(3)
        >>> Evaluation(lambda model: float(model.training), norm)()
        Quality(values=(0.0,), lost=None)
        >>> norm.training
        True
    """

    def __init__(
        self,
        evaluate: Callable[..., Any],
        model: nn.Module | Mapping[str, nn.Module],
        beside: Iterable[nn.Module] = (),
    ) -> None:
        self._evaluate = evaluate
        self._arguments = (model,) if _wants_model(evaluate) else ()
        own = [model] if isinstance(model, nn.Module) else list(model.values())
        self.models = list(dict.fromkeys([*own, *beside]))

    def __call__(self) -> Quality:
        """The quality of the models as they are; it may be not finite.

        Raises:
            EvaluationError: evaluate, or the generator that it returned, raised (chained); or it returned
                something else than numbers.
        """
        with _nothing_cached(), untouched(self.models), _asking_nobody(), torch.no_grad():
            for model in self.models:
                model.eval()
            try:
                return Quality.of(self._evaluate(*self._arguments))
            except EvaluationError:
                raise
            except Exception as error:
                if by_handler(error):
                    raise
                raise EvaluationError(
                    f"evaluate raised {type(error).__name__}: {error}; the model has its own weights again."
                ) from error


@contextmanager
def _nothing_cached() -> Iterator[None]:
    """Inside of it nothing is found that torch has worked out of other weights, and nothing of it outside.

    A step inside of autocast has casts in its cache; one inside of `parametrize.cached` has whole weights in
    another, which is set aside, since the training goes on with it.
    """
    enabled, cache = parametrize._cache_enabled, parametrize._cache

    def put_back() -> None:
        torch.clear_autocast_cache()
        parametrize._cache_enabled, parametrize._cache = enabled, cache

    torch.clear_autocast_cache()
    try:
        parametrize._cache_enabled, parametrize._cache = 0, {}
        yield
    finally:
        insist(put_back)


@contextmanager
def _asking_nobody() -> Iterator[None]:
    """Inside of it no forward pass of DDP waits on other ranks, and none changes whether later ones do.

    The flags are DDP's own, of which it sets one anew in every pass.  They are shadowed in the class, because
    ``evaluate`` may run a wrapper of the model that nobody has given us.
    """
    if FORWARD_SYNC in vars(DistributedDataParallel):  # an evaluation inside of one
        yield
        return
    setattr(DistributedDataParallel, FORWARD_SYNC, property(lambda _: False, _keep_first(FORWARD_SYNC)))
    setattr(DistributedDataParallel, JOIN, property(lambda _: NOT_JOINING, _keep_first(JOIN)))
    try:
        yield
    finally:
        delattr(DistributedDataParallel, FORWARD_SYNC)
        delattr(DistributedDataParallel, JOIN)


def _keep_first(name: str) -> Callable[[DistributedDataParallel, Any], None]:
    """Sets a flag of a wrapper that is made meanwhile; those that have one keep it."""

    def keep(wrapper: DistributedDataParallel, value: Any) -> None:
        vars(wrapper).setdefault(name, value)

    return keep


def _wants_model(evaluate: Callable[..., Any]) -> bool:
    """Whether evaluate has a parameter that must be given."""
    if not callable(evaluate):
        raise ConfigError(f"evaluate must be a function or None, got {type(evaluate).__name__}.")
    try:
        signature = inspect.signature(evaluate)
    except (TypeError, ValueError):  # some built-in callables do not tell
        return False
    for arguments in ((), (None,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 1
    raise ConfigError(f"evaluate{signature} must take nothing, or the model as its only argument.")
