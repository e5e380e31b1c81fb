"""What the Trainer's loading methods do with a folder that bears our marker; with any other they stay native.

A callback is not needed for it: having imported this package is enough.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from transformers import Trainer

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.plugins import describe, read_tree
from dynaquant_transformers.callback import session_of
from dynaquant_transformers.native import is_ours, scheduler_state
from dynaquant_transformers.support import require_own
from dynaquant_transformers.weights import OPTIMIZER, part_of, put_weights

__all__ = ["load_best_model", "load_from_checkpoint", "load_optimizer_and_scheduler"]

logger = logging.getLogger(__name__)

Method = Callable[..., Any]

#: Optimizer states that were read with the weights and are asked for a moment later.
_WAITING: WeakKeyDictionary[Trainer, tuple[str, Any]] = WeakKeyDictionary()


def load_from_checkpoint(
    trainer: Trainer, native: Method, resume_from_checkpoint: Any, model: nn.Module | None = None
) -> None:
    """``_load_from_checkpoint``: the weights; the optimizer's state is read with them and waits."""
    if not is_ours(resume_from_checkpoint):
        more = () if model is None else (model,)  # which some subclasses do not take
        native(resume_from_checkpoint, *more)
        return
    folder = Path(resume_from_checkpoint)
    require_own(folder)
    logger.info("loading the model from %s", folder)
    session = session_of(trainer)
    tree = read_tree(folder) if session is None else session.read(folder)
    put_weights(trainer.model if model is None else model, tree)
    if trainer.is_in_train:  # else nobody asks for it, and it would be held for as long as the trainer is
        _WAITING[trainer] = (str(folder), tree.get(OPTIMIZER))


def load_optimizer_and_scheduler(trainer: Trainer, native: Method, checkpoint: Any) -> None:
    """``_load_optimizer_and_scheduler``: nothing where only the model was saved, as natively."""
    if not is_ours(checkpoint):
        native(checkpoint)
        return
    folder = Path(checkpoint)
    where, state = _WAITING.pop(trainer, (None, None))
    if where != str(folder):
        state = read_tree(folder).get(OPTIMIZER)
    scheduler = scheduler_state(folder)
    if state is None or scheduler is None:
        logger.warning("%s holds the model only: optimizer and scheduler begin anew", folder)
        return
    try:
        trainer.optimizer.load_state_dict(state)
    except (ValueError, KeyError) as error:
        raise StateMismatchError(
            f"the optimizer refused the state in {str(folder)!r} ({error}); build it as it was built when "
            f"the checkpoint was saved."
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about an optimizer that is not loaded beside it
        trainer.lr_scheduler.load_state_dict(scheduler)


def load_best_model(trainer: Trainer, native: Method) -> None:
    """``_load_best_model``: the weights of the best checkpoint, once it has its name."""
    session = session_of(trainer)
    if session is not None:
        session.settle()
        trainer.accelerator.wait_for_everyone()
    best = trainer.state.best_model_checkpoint
    if best is None:  # it was on its way when this was asked for, and never came
        return
    if not is_ours(best):
        native()
        return
    folder = Path(best)
    require_own(folder)
    logger.info(
        "loading the best model from %s (score: %s, step %d)",
        folder,
        trainer.state.best_metric,
        describe(folder).step,
    )
    put_weights(trainer.model, read_tree(folder, names=part_of(trainer.model)))
