"""The object a training loop talks to: it saves when due, within a promise, and restores after a crash."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from dynaquant_core.config import require_choice, require_number
from dynaquant_core.errors import ConfigError, DynaQuantError, SaveError
from dynaquant_core.methods.base import Method
from dynaquant_core.search.manager import Manager
from dynaquant_core.search.quality import Mode
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.store import CheckpointStore
from dynaquant_core.training.choice import Chooser, Promise
from dynaquant_core.training.evaluation import Evaluation
from dynaquant_core.training.gradients import GradientCollector
from dynaquant_core.training.names import parameter_names
from dynaquant_core.training.resume import resume
from dynaquant_core.training.saver import Saver
from dynaquant_core.training.schedule import parse_every
from dynaquant_core.training.signals import SignalFlag
from dynaquant_core.training.subject import Stateful, Subject
from dynaquant_core.training.worker import Worker

__all__ = ["DISABLE", "Checkpointer"]

logger = logging.getLogger(__name__)

#: Environment variable that turns saving off when set to anything but "" and "0".
DISABLE = "DYNAQUANT_DISABLE"


class Checkpointer:
    """Saves a training run into a store of compressed checkpoints, and restores it.

    Saving changes no weight, no buffer, no random stream and no training flag, bit for bit.  The calling thread
    drafts and, given ``evaluate``, searches for the smallest checkpoint whose quality is within ``threshold``;
    encoding and committing happen on a background thread while training goes on.  Two saves are never in
    memory together: a save that comes too soon waits for the one before.

    Args:
        path: folder of the store; made at the first save.
        model: a module, or name -> module.
        optimizer: an optimizer, or name -> optimizer.
        scheduler: learning-rate scheduler, or name -> scheduler.
        scaler: gradient scaler.
        extra: name -> anything with ``state_dict`` and ``load_state_dict``.
        every: optimizer steps between saves, or a time such as ``"30min"``.
        evaluate: takes nothing, or the model; returns a number, or one a batch, on fixed held-out batches.
            It is called in evaluation mode, without gradients.  None: a fixed careful configuration is used.
        threshold: allowed relative degradation at each checkpoint, a share (0.01 = 1%).
        mode: whether the metric is to be minimised ("min") or maximised ("max").
        method: name, mapping with a name and options, or method object; None: the project's default.
        moments: policy for optimizer moments: "8bit" or "exact".
        exact: name patterns kept bit for bit; "*" is everything.
        window: optimizer steps before a save in which gradients are averaged (paper sec. 4.1: 50).
        max_chain: deltas after a key checkpoint, at most.
        keep_last, keep_every, keep_within: retention, as in `CheckpointStore`.
        on_error: whether a save that fails raises ("raise") or is logged ("warn"); training is untouched
            either way.
        save_on: signals, such as ``("SIGTERM",)``, after which the next `step` saves and waits for the
            commit.  The process is not ended: look at `requested_by`.  Main thread only.

    Raises:
        ConfigError: an argument is of the wrong type or out of range.
        NotAStoreError: ``path`` is a file.

    Example:
        >>> import tempfile, torch
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> folder = tempfile.TemporaryDirectory()
        >>> with Checkpointer(folder.name, model, optimizer, every=1, exact=("*",)) as checkpoints:
        ...     start = checkpoints.restore()
        ...     for _ in range(start, 2):
        ...         model(torch.ones(1, 8)).sum().backward()
        ...         optimizer.step()
        ...         checkpoints.step()
        >>> with Checkpointer(folder.name, model, optimizer) as checkpoints:
        ...     checkpoints.restore()
        2
        >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Optimizer | Mapping[str, Optimizer] | None = None,
        *,
        scheduler: Stateful | Mapping[str, Stateful] | None = None,
        scaler: Stateful | None = None,
        extra: Mapping[str, Stateful] | None = None,
        every: int | str = 1000,
        evaluate: Callable[..., Any] | None = None,
        threshold: float = 0.01,
        mode: Mode = "min",
        method: str | Mapping[str, Any] | Method | None = None,
        moments: str = "8bit",
        exact: str | Sequence[str] = (),
        window: int = 50,
        max_chain: int = 8,
        keep_last: int | None = None,
        keep_every: int | None = None,
        keep_within: int | str | None = None,
        on_error: Literal["raise", "warn"] = "raise",
        save_on: Iterable[str] = (),
    ) -> None:
        _require_valid(threshold, mode, window, on_error)
        subject = Subject(model, optimizer, scheduler, scaler, extra or {})
        promise = None if evaluate is None else Promise(Evaluation(evaluate, model), threshold, mode)
        self._schedule = parse_every(every)
        self.store = CheckpointStore(
            path,
            method=method,
            moments=moments,
            exact=exact,
            max_chain=max_chain,
            keep_last=keep_last,
            keep_every=keep_every,
            keep_within=keep_within,
        )
        self._enabled = os.environ.get(DISABLE, "") in {"", "0"}
        self._window, self._warn = window, on_error == "warn"
        self._completed = 0
        self._requested_by: str | None = None
        self._closed = False
        self._subject = subject
        self._worker: Worker[CheckpointInfo] = Worker()
        self._chooser = Chooser(promise, Manager(profile=self._profile()))
        optimizers = subject.optimizers.values() if self._enabled else ()
        self._collector = GradientCollector(optimizers, parameter_names(subject.models))
        self._saver = Saver(self.store, subject, self._chooser, self._collector, self._worker)
        self._signals = SignalFlag(save_on if self._enabled else ())
        if not self._enabled:
            logger.warning("%s is set: nothing will be saved to %s", DISABLE, Path(path))
        self._tap()

    @property
    def completed(self) -> int:
        """Optimizer steps completed, those before a restore included."""
        return self._completed

    @property
    def last(self) -> CheckpointInfo | None:
        """The checkpoint that was committed last by this object; None before the first."""
        return self._worker.result

    @property
    def requested_by(self) -> str | None:
        """The signal of `save_on` that the last save on request answered; None without one."""
        return self._requested_by

    def restore(self, step: int | None = None) -> int:
        """Puts model, optimizer, scheduler, scaler, extra and random streams back.

        Args:
            step: None: the newest whole checkpoint, falling back to the one before where it is damaged, which
                is said in the log.  A number: that one, or an error.

        Returns:
            Completed optimizer steps at the checkpoint; 0, and nothing touched, where the folder is missing
            or empty.

        Raises:
            CheckpointNotFoundError: ``step`` is not in the store.
            StateMismatchError: the checkpoint does not fit; names the tensors; nothing was touched.
            EmptyStoreError: there are checkpoints and none is whole.
            CorruptFileError: the checkpoint of ``step`` is damaged.
        """
        self._worker.wait()
        resumed = resume(self.store, self._subject, step)
        if resumed is None:
            return 0
        self._chooser.state = resumed.search
        self._completed = resumed.step
        self._schedule.saved(resumed.step)
        self._collector.stop()
        self._tap()
        logger.info("restored step %d from %s", resumed.step, self.store.path)
        return resumed.step

    def step(self) -> None:
        """Tells that one optimizer step is complete; saves if one is due or was asked for by a signal.

        With several optimizers, call it once all have stepped.

        Raises:
            SaveError: a save in the background failed since the last call.
            EvaluationError: evaluate failed at this save; an exact checkpoint was committed instead.
            DynaQuantError: this save failed on the calling thread.
        """
        self._require_open()
        self._completed += 1
        self._schedule.advance(self._completed)
        with self._reporting():
            self._worker.check()
        signal_name = self._signals.take()
        if signal_name is not None or self._schedule.due():
            self.save()
        if signal_name is not None:
            self.wait()
            self._requested_by = signal_name
            logger.warning("saved step %d on %s; the process goes on", self._completed, signal_name)
        self._tap()

    def save(self) -> None:
        """Saves the state as it is now, due or not; returns once it may change again.

        Raises:
            SaveError: a save in the background failed since the last call; nothing was saved now.
            EvaluationError: evaluate failed; an exact checkpoint was committed instead.
            DynaQuantError: this save failed on the calling thread.
        """
        self._require_open()
        try:
            with self._reporting():
                self._worker.check()
            if self._enabled:
                with self._reporting():
                    self._saver.save(self._completed)
        finally:
            self._schedule.saved(self._completed)  # also after a failure: the next try is the next due step
            self._collector.stop()
            self._tap()

    def wait(self) -> CheckpointInfo | None:
        """Waits until the save in the background is committed; returns the last checkpoint's info.

        Raises:
            SaveError: a save failed since the last call.
        """
        with self._reporting():
            self._worker.wait()
        return self.last

    def close(self) -> None:
        """Waits for the save in the background, and takes hooks and signal handlers off.

        Raises:
            SaveError: a save in the background failed at any time, reported before or not.
        """
        if self._closed:
            return
        self._closed = True
        try:
            with self._reporting():
                self._worker.close()
        finally:
            self._collector.close()
            self._signals.close()
            self.store.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:  # the loop's own error is the one to see; a failed save is already in the log
            self._warn = True
        self.close()
