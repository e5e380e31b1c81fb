"""Who asks for a save: a ModelCheckpoint, which removes through us what the save replaces, or anybody."""

from __future__ import annotations

from contextvars import ContextVar
from functools import wraps
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from dynaquant_lightning.paths import local

__all__ = ["install_asking", "removed_in_order"]

MARK = "_dynaquant_asks"

#: Where the ModelCheckpoint further up the stack saves right now.
_asked: ContextVar[str | None] = ContextVar("_asked", default=None)


def install_asking() -> None:
    """Wraps the method with which a ModelCheckpoint saves; a second call does nothing."""
    original = ModelCheckpoint._save_checkpoint
    if hasattr(original, MARK):
        return

    @wraps(original)
    def _save_checkpoint(self: ModelCheckpoint, trainer: Trainer, filepath: Any) -> None:
        natively = type(self)._remove_checkpoint is ModelCheckpoint._remove_checkpoint
        token = _asked.set(local(filepath) if natively else None)
        try:
            original(self, trainer, filepath)
        finally:
            _asked.reset(token)

    setattr(_save_checkpoint, MARK, True)
    ModelCheckpoint._save_checkpoint = _save_checkpoint


def removed_in_order(path: str) -> bool:
    """Whether what the save into ``path`` replaces goes through our line, behind it.

    A hook that calls ``trainer.save_checkpoint`` may remove the checkpoint before as soon as that returns,
    and so may a subclass that removes by itself.
    """
    return _asked.get() == path
