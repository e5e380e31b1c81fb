"""What the Trainer's saving methods do where there is a `DynaQuantCallback`.

Each function stands in for the method of its name: it gets the trainer, the method itself, and its arguments.
Everything else is the Trainer's own business and stays native.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer import SCHEDULER_NAME

from dynaquant_transformers.bare import without_weights
from dynaquant_transformers.callback import session_of
from dynaquant_transformers.weights import adapters_of, hollow

__all__ = ["save_checkpoint", "save_files", "save_optimizer_and_scheduler"]

Method = Callable[..., Any]


def save_checkpoint(trainer: Trainer, native: Method, model: Any, trial: Any) -> None:
    """``_save_checkpoint``, the Trainer's own: when it returns to a subclass, the checkpoint is made."""
    session = session_of(trainer)
    if session is None or not session.making.is_saving:
        native(model, trial)
    else:
        session.making.write(partial(native, model, trial))


def save_files(trainer: Trainer, native: Method, output_dir: Any = None, state_dict: Any = None) -> None:
    """``_save``: configuration, tokenizer and arguments; in a checkpoint without weights."""
    session = session_of(trainer)
    if session is None or not session.making.is_making(output_dir):
        native(output_dir, state_dict)
        return
    leaves_none = without_weights(Path(output_dir), adapters_of(trainer.model))
    with leaves_none if trainer.args.should_save else nullcontext():
        native(output_dir, hollow(trainer.model))


def save_optimizer_and_scheduler(trainer: Trainer, native: Method, output_dir: Any) -> None:
    """``_save_optimizer_and_scheduler``: in a checkpoint the scheduler only."""
    session = session_of(trainer)
    if session is None or not session.making.is_making(output_dir):
        native(output_dir)
    elif trainer.args.should_save:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about an optimizer that is not saved beside it
            torch.save(trainer.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)
