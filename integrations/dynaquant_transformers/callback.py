"""The one line that a training script adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from transformers import Trainer, TrainerCallback

from dynaquant_core.config import require
from dynaquant_core.errors import ConfigError
from dynaquant_core.plugins import PluginOptions
from dynaquant_transformers.session import Session

__all__ = ["DynaQuantCallback", "callback_of", "session_of"]


class DynaQuantCallback(TrainerCallback):
    """Makes the Trainer's checkpoints DynaQuant checkpoints.

    When, where and how many are the Trainer's own arguments, and so is resuming.  Saving changes no weight,
    no random stream and no metric of the training.  Under DDP the search is spread over the ranks.

    Args:
        threshold: allowed relative degradation at each checkpoint, a share (0.01 = 1%).
        evaluate: takes nothing, or the model; returns a number, or one a batch; it may ask the Trainer's own
            ``evaluate()``, of which no callback and no log hears then.  None: the loss on the Trainer's
            ``eval_dataset``.  Without either every checkpoint has one fixed configuration.
        mode: whether that number is to be minimised ("min") or maximised ("max").
        method: name, mapping with a name and options, or method object; None: the project's default.
        moments: policy for optimizer moments: "8bit", "exact", "compact", "minimal", "sparse", "second"
            or "none".
        window: optimizer steps before a save in which gradients are averaged.
        max_chain: deltas after a key checkpoint, at most; fewer than ``save_total_limit`` in any case.
        exact: name patterns kept bit for bit; "*" is everything.
        on_error: whether a save that fails ends the training ("raise") or is logged ("warn").
        eval_batches: how many batches of each ``eval_dataset`` the search uses; None: all.

    Raises:
        ConfigError: an argument is of the wrong type or out of range.

    Example:
        >>> DynaQuantCallback(threshold=0.02, exact="lm_head").options.threshold
        0.02
    """

    def __init__(
        self,
        *,
        threshold: float = 0.01,
        evaluate: Callable[..., Any] | None = None,
        mode: Literal["min", "max"] = "min",
        method: str | Mapping[str, Any] | Any | None = None,
        moments: str = "8bit",
        window: int = 50,
        max_chain: int = 8,
        exact: str | Sequence[str] = (),
        on_error: Literal["raise", "warn"] = "raise",
        eval_batches: int | None = 16,
    ) -> None:
        if eval_batches is not None and (type(eval_batches) is not int or eval_batches < 1):
            raise ConfigError(f"eval_batches must be a whole number above 0 or None, got {eval_batches!r}.")
        require(
            evaluate is not None or mode == "min",
            "mode='max' needs evaluate=, a function whose value is to be high; else the loss is measured.",
        )
        self.options = PluginOptions(
            threshold=threshold,
            evaluate=evaluate,
            mode=mode,
            method=method,
            moments=moments,
            window=window,
            max_chain=max_chain,
            exact=exact,
            on_error=on_error,
        )
        self.session: Session | None = None
        self._eval_batches = eval_batches

    @contextmanager
    def training(self, trainer: Trainer) -> Iterator[Session]:
        """The session of one ``trainer.train()``; when it ends, every checkpoint is committed."""
        outer, self.session = self.session, Session(trainer, self.options, self._eval_batches)
        session = self.session
        try:
            yield session
            session.finish()
        except BaseException:
            session.give_up()
            raise
        finally:
            self.session = outer  # of a training in whose midst this one was

    # -- events of the Trainer, whose arguments before the keywords are args, state and control -----

    def on_train_begin(self, *_: Any, **told: Any) -> None:
        """The optimizer is there: its steps are watched from now on."""
        if self.session is not None:
            self.session.watch(told.get("optimizer"))

    def on_step_begin(self, *_: Any, **told: Any) -> None:
        """Looks ahead to the next save."""
        if self.session is not None:
            self.session.step_begins(told.get("train_dataloader"))

    def on_log(self, *_: Any, **told: Any) -> None:
        """The Trainer's last line comes before it looks for the best and for superfluous checkpoints."""
        if self.session is not None and "train_runtime" in (told.get("logs") or {}):
            self.session.log_ends()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """What was begun is committed, and every rank finds it; callbacks after this one may still save."""
        if self.session is not None:
            self.session.end()


def callback_of(trainer: Trainer) -> DynaQuantCallback | None:
    """The trainer's callback of ours; None where it has none."""
    handler = getattr(trainer, "callback_handler", None)
    found = (one for one in getattr(handler, "callbacks", ()) if isinstance(one, DynaQuantCallback))
    return next(found, None)


def session_of(trainer: Trainer) -> Session | None:
    """The session of the training that is going on; None outside of one, or without our callback."""
    callback = callback_of(trainer)
    return None if callback is None else callback.session
