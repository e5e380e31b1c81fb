"""Which ways of running a Trainer can save through us, and how our CheckpointIO gets into them."""

from __future__ import annotations

from typing import Any

from lightning.fabric.plugins import CheckpointIO, TorchCheckpointIO
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import AsyncCheckpointIO
from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    SingleDeviceStrategy,
    SingleDeviceXLAStrategy,
)

from dynaquant_core.errors import ConfigError
from dynaquant_lightning.io import DynaQuantCheckpointIO
from dynaquant_lightning.trainer_io import TrainerCheckpointIO

__all__ = ["install", "require_supported"]


def require_supported(trainer: Trainer) -> None:
    """Raises ConfigError where the Trainer's strategy saves in a way that passes a CheckpointIO by."""
    strategy = trainer.strategy
    good = isinstance(strategy, (SingleDeviceStrategy, DDPStrategy))
    if not good or isinstance(strategy, (DeepSpeedStrategy, SingleDeviceXLAStrategy)):
        raise ConfigError(
            f"{type(strategy).__name__} writes its checkpoints itself, in shards; DynaQuant works on one "
            "device and with DDP: choose one of them, or take DynaQuantCallback out to save natively."
        )


def install(trainer: Trainer, io: TrainerCheckpointIO) -> None:
    """Makes ``io`` the Trainer's CheckpointIO, once; other Trainers are not touched.

    Args:
        trainer: of a supported strategy.
        io: what to save through.  Where there are several ranks, each of them calls its `choose` before a
            save and its `finish` after it: only rank 0 reaches a CheckpointIO.

    Raises:
        ConfigError: the Trainer was given a CheckpointIO, and not one of Lightning's own.
    """
    strategy = trainer.strategy
    present = strategy.checkpoint_io
    if present is io:
        return
    _require_replaceable(present)
    strategy.checkpoint_io = io
    if trainer.world_size > 1:
        _around_saves(strategy, io)


def _require_replaceable(present: CheckpointIO | None) -> None:
    """Refuses all but Lightning's own, also behind its thread (ours has one itself), and a callback's."""
    while isinstance(present, AsyncCheckpointIO):
        present = present.checkpoint_io
    if type(present) is TorchCheckpointIO or isinstance(present, TrainerCheckpointIO) or present is None:
        return
    options = (
        "give its options to DynaQuantCallback and " if isinstance(present, DynaQuantCheckpointIO) else ""
    )
    raise ConfigError(
        f"the Trainer already has the CheckpointIO {type(present).__name__}; {options}leave it out of "
        "plugins=, or take DynaQuantCallback out."
    )


def _around_saves(strategy: Any, io: TrainerCheckpointIO) -> None:
    original = type(strategy).save_checkpoint

    def save_checkpoint(
        checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        io.choose(checkpoint, filepath)
        original(strategy, checkpoint, filepath, storage_options=storage_options)
        io.finish(checkpoint, filepath)

    strategy.save_checkpoint = save_checkpoint
