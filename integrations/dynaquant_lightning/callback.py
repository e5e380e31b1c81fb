"""The one line that a training script needs: ``Trainer(callbacks=[DynaQuantCallback()])``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer

from dynaquant_core.config import require
from dynaquant_core.plugins import PluginOptions
from dynaquant_lightning.schedule import steps_until_save
from dynaquant_lightning.strategies import install, require_supported
from dynaquant_lightning.trainer_io import TrainerCheckpointIO

__all__ = ["DynaQuantCallback"]


class DynaQuantCallback(Callback):
    """Lets everything that a Trainer saves be written as compressed folders, and be loaded from them.

    ModelCheckpoint, `trainer.save_checkpoint`, ``fit(ckpt_path=)``, ``validate(ckpt_path=)`` and
    `load_from_checkpoint` stay as they are; ``X.ckpt`` is a folder.  The configuration of each checkpoint is
    searched for with `validation_step` on the first validation batches.  Training itself is unchanged, bit
    for bit.

    Args:
        threshold: allowed relative degradation of each checkpoint, a share (0.01 = 1%).
        evaluate: None: the loss of `validation_step`; a name: that logged value; a function of nothing or of
            the module: what it returns, a number or one a batch.
        mode: whether the metric is to be minimised ("min") or maximised ("max").
        method: name, mapping with a name and options, or method object; None: the project's default.
        moments: policy for optimizer moments: "8bit", "exact", "compact", "minimal", "sparse", "second"
            or "none".
        exact: name patterns kept bit for bit; "*" is everything.
        window: optimizer steps before a save in which gradients are averaged.
        max_chain: deltas after a key checkpoint, at most.
        on_error: whether a save that fails raises ("raise") or is logged ("warn").

    Raises:
        ConfigError: an option is of the wrong type or out of range.

    Example:
        >>> trainer = Trainer(callbacks=[DynaQuantCallback(threshold=0.02)], logger=False)
        ... # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        threshold: float = 0.01,
        evaluate: Callable[..., Any] | str | None = None,
        mode: Literal["min", "max"] = "min",
        method: Any = None,
        moments: str = "8bit",
        exact: str | Sequence[str] = (),
        window: int = 50,
        max_chain: int = 8,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        self._metric = evaluate if isinstance(evaluate, str) else None
        self._options: dict[str, Any] = {
            "threshold": threshold,
            "evaluate": None if isinstance(evaluate, str) else evaluate,
            "mode": mode,
            "method": method,
            "moments": moments,
            "exact": exact,
            "window": window,
            "max_chain": max_chain,
            "on_error": on_error,
        }
        PluginOptions(**self._options)
        require(
            evaluate is not None or mode == "min",
            "mode='max' needs evaluate=: the name of a logged value that is to be high, or a function.",
        )
        self.io: TrainerCheckpointIO | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Installs the CheckpointIO before anything is loaded."""
        require_supported(trainer)
        if self.io is None or self.io.trainer is not trainer:
            self.io = TrainerCheckpointIO(trainer, self._metric, **self._options)
        install(trainer, self.io)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Watches what is trained."""
        if self.io is not None:
            self.io.begin_training()

    def on_train_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        """Averages gradients while a save is near."""
        if self.io is not None:
            self.io.went_on()
            self.io.look_ahead(steps_until_save(trainer, batch_idx))

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Training went on."""
        self._went_on()

    def on_train_epoch_end(self, *_: Any, **__: Any) -> None:
        """Training went on."""
        self._went_on()

    def on_validation_start(self, *_: Any, **__: Any) -> None:
        """Training went on."""
        self._went_on()

    def on_validation_end(self, *_: Any, **__: Any) -> None:
        """Training went on."""
        self._went_on()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Waits for what is on its way, so that hooks after this one find the checkpoints they look for.

        So they do on every rank, though one alone writes.

        Raises:
            SaveError: something could not be written, here or on another rank.
        """
        if self.io is None:
            return
        self.io.went_on()
        self.io.meet()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Every rank finds the checkpoints, those too that a ModelCheckpoint made after `on_train_end`."""
        trainer.strategy.barrier("DynaQuantCallback.on_fit_end")

    def on_exception(self, *_: Any, **__: Any) -> None:
        """Training went on."""
        self._went_on()

    def _went_on(self) -> None:
        if self.io is not None:
            self.io.went_on()

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to this process; `setup` makes it anew elsewhere."""
        return {**vars(self), "io": None}
