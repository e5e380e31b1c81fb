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

#: What saves no memory and is there to see what a format does to a training: only where it is asked for.
EMULATED = ("gradient_maps", "gradients", "weights", "optimizer_state")

#: By which callback a model is coded: where a training raised or was interrupted, the next one ends that.
_coding: weakref.WeakKeyDictionary[Any, weakref.ref[SmaQCallback]] = weakref.WeakKeyDictionary()


class SmaQCallback(TrainerCallback):
    """Packs the feature maps that the Trainer holds while it trains, as `dynaquant_core.memory.smaq.apply`.

    That is what saves memory, and the forward pass stays exact.  Gradients of maps, gradients, weights and
    optimizer state, which `apply` codes in place to emulate a format, are left alone unless asked for.

    Draws follow from the Trainer's ``seed`` and the number of the step, so a resumed training goes on as the
    uninterrupted one would, and nothing has to be stored.  Evaluation is as ever.

    Args:
        settings: those of `smaq.apply`, without model, optimizer, generator and ``reuse``; ``gradient_maps``,
            ``gradients``, ``weights`` and ``optimizer_state`` are False if they are not given.

    Raises:
        ConfigError: one of these four; the others are looked at when training begins.

    Example:
        >>> callback = SmaQCallback(format={"name": "smaq", "limit": 4.0})  # as many bytes, smaller errors
        >>> callback.settings["gradients"]
        False
    """

    def __init__(self, **settings: Any) -> None:
        for name in TAKEN:
            if name in settings:
                raise ConfigError(f"SmaQCallback: {name} is the Trainer's to give; leave it out.")
        self.settings = dict.fromkeys(EMULATED, False) | settings
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
