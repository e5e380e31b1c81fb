"""SmaQ in the Trainer: one more callback, and the training holds packed feature maps."""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim import Optimizer
from transformers import TrainerCallback

from dynaquant_core.errors import ConfigError
from dynaquant_core.memory import smaq

__all__ = ["SmaQCallback"]

#: What the Trainer's model and optimizer are given for, or would not survive a resume.
TAKEN = ("model", "optimizer", "generator", "reuse")


#: By which callback a model is coded: where a training raised or was interrupted, the next one ends that.
_coding: weakref.WeakKeyDictionary[Any, weakref.ref[SmaQCallback]] = weakref.WeakKeyDictionary()


class SmaQCallback(TrainerCallback):
    """Codes what the Trainer holds while it trains, as `dynaquant_core.memory.smaq.apply` does.

    Draws follow from the Trainer's ``seed`` and the number of the step, so a resumed training goes on as the
    uninterrupted one would, and nothing has to be stored.  Evaluation is as ever.

    Args:
        settings: those of `smaq.apply`, without model, optimizer, generator and ``reuse``.

    Raises:
        ConfigError: one of these four; the others are looked at when training begins.

    Example:
        >>> SmaQCallback(feature_maps="saved", gradient_maps=False).settings["feature_maps"]
        'saved'
    """

    def __init__(self, **settings: Any) -> None:
        for name in TAKEN:
            if name in settings:
                raise ConfigError(f"SmaQCallback: {name} is the Trainer's to give; leave it out.")
        self.settings = settings
        self.handle: smaq.Handle | None = None
        self._report: dict[str, Any] = {}

    def report(self) -> dict[str, Any]:
        """What was coded, as `smaq.Handle.report` says it; after training, of all of it."""
        return self._report if self.handle is None else self.handle.report()

    # -- events of the Trainer, whose arguments before the keywords are args, state and control -----

    def on_train_begin(self, *_: Any, **told: Any) -> None:
        """Model and optimizer are there."""
        self._end()  # of a training that raised
        former = _coding.pop(told["model"], lambda: None)()
        if former is not None:
            former._end()  # likewise, of another Trainer
        optimizer = told.get("optimizer")
        inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper steps without hooks
        given = inner if isinstance(inner, Optimizer) else None
        self.handle = smaq.apply(told["model"], given, **self.settings)
        _coding[told["model"]] = weakref.ref(self)
        self._gone = weakref.finalize(self, self.handle.leave)
        self._gone.atexit = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - its way
        """Every step has draws of its own, the same on every rank."""
        if self.handle is not None:
            self.handle.reseed((args.seed << 32) + state.global_step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """The model is the user's again."""
        self._end()

    def _end(self) -> None:
        if self.handle is not None:
            self._report = self.handle.report()
            self._gone.detach()
            self.handle.remove()
            self.handle = None
