"""The same for those who subclass the Trainer: methods of their class, in sight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers import Trainer

from dynaquant_core.errors import ConfigError
from dynaquant_transformers import loading, saving, training
from dynaquant_transformers.callback import DynaQuantCallback, callback_of

if TYPE_CHECKING:
    from transformers import Trainer as _Base  # what it stands before
else:
    _Base = object

__all__ = ["DynaQuantTrainerMixin"]


class DynaQuantTrainerMixin(_Base):
    """Makes a subclass of the Trainer save DynaQuant checkpoints.

    It goes before the Trainer: ``class MyTrainer(DynaQuantTrainerMixin, Seq2SeqTrainer)``.

    Args:
        dynaquant: arguments of the `DynaQuantCallback`; not needed where the callbacks hold one.
        args, kwargs: the Trainer's own.

    Raises:
        ConfigError: a class names it after the Trainer, where it would do nothing.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        order = [base for base in cls.__mro__ if base in (Trainer, DynaQuantTrainerMixin)]
        if order[0] is Trainer:
            raise ConfigError(f"class {cls.__name__}: put DynaQuantTrainerMixin before the Trainer.")

    def __init__(self, *args: Any, dynaquant: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if callback_of(self) is None:
            self.add_callback(DynaQuantCallback(**dict(dynaquant or {})))

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """See `training.train`."""
        return training.train(self, super().train, resume_from_checkpoint, *args, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        saving.save_files(self, super()._save, output_dir, state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        saving.save_optimizer_and_scheduler(self, super()._save_optimizer_and_scheduler, output_dir)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        loading.load_from_checkpoint(self, super()._load_from_checkpoint, resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        loading.load_optimizer_and_scheduler(self, super()._load_optimizer_and_scheduler, checkpoint)

    def _load_best_model(self) -> None:
        loading.load_best_model(self, super()._load_best_model)
