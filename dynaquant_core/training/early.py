"""What would go wrong after hours of work, said at once: by an error, or by a line in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from torch import nn

from dynaquant_core.errors import ConfigError, DynaQuantError
from dynaquant_core.state import flatten
from dynaquant_core.state.compressed import is_compressed
from dynaquant_core.store.catalogue import Catalogue
from dynaquant_core.threads import thread_count
from dynaquant_core.training.capture import capture
from dynaquant_core.training.disabled import DISABLE
from dynaquant_core.training.names import canonical_name, parameter_names
from dynaquant_core.training.optimizers import is_sharded
from dynaquant_core.training.subject import Subject
from dynaquant_core.training.whole import require_whole

__all__ = ["look_at_folder", "look_at_subject", "look_at_threads", "warn_of_unsavable"]

logger = logging.getLogger(__name__)


def look_at_subject(subject: Subject) -> None:
    """What is to be trained, before it is.

    Raises:
        ConfigError: it or its optimizer is sharded, or two of its tensors share a name.
    """
    _require_whole(subject)
    _require_own_names(subject)
    _warn_of_strangers(subject)


def look_at_folder(folder: Path, *, enabled: bool) -> None:
    """Says in the log where nothing will be saved into a folder."""
    if not enabled:
        logger.warning("%s is set: nothing is saved to %s", DISABLE, folder)
    elif Catalogue(folder).holds_strangers_only():
        logger.warning("%s holds other files: the first save into it will be refused", folder)


def look_at_threads() -> None:
    """How many threads a save may use.

    Raises:
        ConfigError: ``DYNAQUANT_THREADS`` is no number of them.
    """
    thread_count()


def _require_whole(subject: Subject) -> None:
    """Refuses models and optimizers that this process holds a share of only.

    Raises:
        ConfigError: as `whole.require_whole`, or an optimizer keeps its state on several ranks.
    """
    require_whole(subject.models.values())
    for optimizer in filter(is_sharded, subject.optimizers.values()):
        raise ConfigError(
            f"the optimizer is sharded ({type(optimizer).__name__} keeps the state of some parameters on "
            "each rank): a Checkpointer saves what its process holds whole, alone or under DDP; train with "
            "the optimizer inside it, or save with torch.save after consolidate_state_dict()."
        )


def _require_own_names(subject: Subject) -> None:
    """Refuses different tensors that would be stored under one name, and one of them lost.

    Raises:
        ConfigError: names two.
    """
    for model in subject.models.values():
        tensors = (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
        _require_apart((canonical_name(model, key), id(tensor)) for key, tensor in tensors)
    names = parameter_names(subject.models)
    _require_apart((name, id(parameter)) for parameter, several in names.items() for name in several)


def _require_apart(named: Iterable[tuple[str, int]]) -> None:
    seen: dict[str, int] = {}
    for name, tensor in named:
        if seen.setdefault(name, tensor) != tensor:
            raise ConfigError(
                f"two tensors of the models would be stored under the name {name!r}; give the models, or the "
                "module that wraps one, other names."
            )


def _warn_of_strangers(subject: Subject) -> None:
    """Says in the log that an optimizer trains what is no parameter of the models, nor of a module in extra.

    A model that was made again after its optimizer trains no more, which shows only after a crash.
    """
    models = subject.models.values()
    beside = [part for part in subject.extra.values() if isinstance(part, nn.Module)]
    own = {id(weight) for module in (*models, *beside) for weight in module.parameters()}
    groups = [group for optimizer in subject.optimizers.values() for group in optimizer.param_groups]
    trained = [id(weight) for group in groups for weight in group["params"]]
    other = sum(weight not in own for weight in trained)
    if not other or any(map(is_compressed, models)):
        return
    whose = "the optimizer trains no parameter of the model"
    if other < len(trained):
        whose = f"{other} of {len(trained)} tensors that the optimizer trains are no parameters of the model"
    logger.warning(
        "%s, so that what it trains there is in no checkpoint: make it after the model, or pass every module "
        "that it trains (model={...}, or extra={...})",
        whose,
    )


def warn_of_unsavable(subject: Subject, step: int) -> None:
    """Says in the log what a save of the state as it is would refuse; copies and changes nothing."""
    try:
        flatten(capture(subject, step))
    except DynaQuantError as error:
        logger.warning("no checkpoint can be saved while this is so: %s", error)
