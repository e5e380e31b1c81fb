"""How many optimizer steps are left until a Trainer saves, read from its ModelCheckpoint callbacks."""

from __future__ import annotations

import math

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

__all__ = ["steps_until_save"]


def steps_until_save(trainer: Trainer, batch_idx: int) -> int | None:
    """Optimizer steps until the next save that can be foreseen.

    Exact for `every_n_train_steps` and for saves at the end of an epoch or of a validation; with manual
    optimization one step a batch is assumed.

    Args:
        trainer: one that fits, asked before a batch.
        batch_idx: of that batch in its epoch.

    Returns:
        None where no save can be foreseen: by time, on demand, or in an epoch of unknown length.
    """
    callbacks = [item for item in trainer.checkpoint_callbacks if isinstance(item, ModelCheckpoint)]
    steps = [_steps(trainer, item, batch_idx) for item in callbacks if item.save_top_k or item.save_last]
    return min((left for left in steps if left is not None), default=None)


def _steps(trainer: Trainer, callback: ModelCheckpoint, batch_idx: int) -> int | None:
    every: int = getattr(callback, "_every_n_train_steps", 0)
    if every:
        return every - int(trainer.global_step) % every
    if not callback.every_n_epochs or not math.isfinite(trainer.num_training_batches):
        return None
    batches = int(trainer.num_training_batches)
    whole, rest = divmod(_saving_batches(trainer, callback, batches, batch_idx), batches)
    accumulate: int = trainer.accumulate_grad_batches
    steps = whole * math.ceil(batches / accumulate) + math.ceil(rest / accumulate)
    return steps - batch_idx // accumulate


def _saving_batches(trainer: Trainer, callback: ModelCheckpoint, batches: int, batch_idx: int) -> int:
    """Batches from the start of this epoch to the end of that after which the callback saves."""
    with_training: bool = callback._should_save_on_train_epoch_end(trainer)
    check: int = trainer.val_check_batch if isinstance(trainer.val_check_batch, int) else batches
    validated: int | None = trainer.check_val_every_n_epoch
    if not with_training and validated is None:  # validations are counted through epochs
        return batch_idx + check - int(trainer.fit_loop.total_batch_idx) % check
    every = int(callback.every_n_epochs or 1)
    if not with_training:
        every = math.lcm(every, validated or 1)
    later = -(int(trainer.current_epoch) + 1) % every
    if with_training or later:
        return (later + 1) * batches
    return min(batches, (batch_idx // check + 1) * check)
