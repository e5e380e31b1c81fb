"""The same for those who subclass the Trainer: their class brings the callback along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers import Trainer

from dynaquant_core.errors import ConfigError
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
