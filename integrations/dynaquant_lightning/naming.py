"""What ModelCheckpoint believes to be on disk: a folder on its way counts, what a dead save left does not."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from dynaquant_core.plugins import is_checkpoint
from dynaquant_core.plugins.folder import PENDING
from dynaquant_lightning.io import DynaQuantCheckpointIO
from dynaquant_lightning.paths import local

__all__ = ["install_names", "is_unfinished"]

MARK = "_dynaquant_looks"


def install_names() -> None:
    """Wraps two methods of ModelCheckpoint; a second call does nothing.

    `file_exists`, by which it chooses names, counts a folder that is still being written, for Trainers that
    save through us: a second checkpoint must not get the name of one that is on its way.  It and the search
    for ``ckpt_path="last"`` pass over folders of ours that a killed process left unfinished.
    """
    _wrap("file_exists", _file_exists)
    _wrap("_find_last_checkpoints", _find_last_checkpoints)


def _wrap(name: str, wrapper: Callable[..., Any]) -> None:
    original = getattr(ModelCheckpoint, name)
    if hasattr(original, MARK):
        return

    @wraps(original)
    def method(self: ModelCheckpoint, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, self, *args, **kwargs)

    setattr(method, MARK, True)
    setattr(ModelCheckpoint, name, method)


def _file_exists(
    original: Callable[..., bool], self: ModelCheckpoint, filepath: Any, trainer: Trainer
) -> bool:
    io = trainer.strategy.checkpoint_io
    if not isinstance(io, DynaQuantCheckpointIO):
        return original(self, filepath, trainer)
    here = trainer.is_global_zero and io.runs.owner(filepath) is not None
    there = trainer.is_global_zero and is_unfinished(filepath)
    if trainer.strategy.reduce_boolean_decision(here, all=False):
        return True
    if trainer.strategy.reduce_boolean_decision(there, all=False):
        return False
    return original(self, filepath, trainer)


def _find_last_checkpoints(
    original: Callable[..., set[str]], self: ModelCheckpoint, trainer: Trainer
) -> set[str]:
    return {path for path in original(self, trainer) if not is_unfinished(path)}


def is_unfinished(path: Any) -> bool:
    """Whether a save into the folder died before anything was committed there."""
    folder = Path(local(path))
    if not folder.is_dir() or is_checkpoint(folder):
        return False
    names = [entry.name for entry in folder.iterdir()]
    return PENDING in names or all(name.startswith(".") for name in names)
