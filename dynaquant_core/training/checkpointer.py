"""The object a training loop talks to: it saves when due, within a promise, and restores after a crash."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from torch import nn
from torch.optim import Optimizer

from dynaquant_core.config import require, require_choice, require_number, require_threshold
from dynaquant_core.errors import SaveError
from dynaquant_core.methods.base import Method, spares_gradients
from dynaquant_core.search.quality import Mode
from dynaquant_core.store.disk import warn_of_unwritable
from dynaquant_core.store.info import CheckpointInfo
from dynaquant_core.store.store import CheckpointStore
from dynaquant_core.threads import turn
from dynaquant_core.training.answer import Answer
from dynaquant_core.training.begun import Begun
from dynaquant_core.training.choice import Chooser, Promise, manager_for
from dynaquant_core.training.disabled import is_disabled
from dynaquant_core.training.early import look_at_folder, look_at_subject, look_at_threads, warn_of_unsavable
from dynaquant_core.training.evaluation import Evaluation
from dynaquant_core.training.gradients import GradientCollector
from dynaquant_core.training.names import parameter_names
from dynaquant_core.training.resume import resume
from dynaquant_core.training.saver import Saver
from dynaquant_core.training.saves import Saves
from dynaquant_core.training.schedule import parse_every
from dynaquant_core.training.signals import SignalFlag
from dynaquant_core.training.stepping import Stepping
from dynaquant_core.training.subject import Stateful, Subject
from dynaquant_core.training.tolerance import told
from dynaquant_core.training.turns import Turns
from dynaquant_core.training.untold import Untold
from dynaquant_core.training.worker import Worker, await_all

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Checkpointer"]

logger = logging.getLogger(__name__)


class Checkpointer:
    """Saves a training run into a store of compressed checkpoints, and restores it.

    Saving changes no weight, no buffer, no random stream and no training flag, bit for bit.  The calling
    thread drafts and, given ``evaluate``, searches for the smallest checkpoint whose quality is within
    ``threshold``; encoding and committing happen on a background thread while training goes on.  Two saves
    are never in memory together: a save that comes too soon waits for the one before, whatever thread it
    comes from.  Nothing else may train the model while one is drafted.

    Args:
        path: folder of the store; made at the first save.
        model: a module, or name -> module.
        optimizer: an optimizer, or name -> optimizer.
        scheduler: learning-rate scheduler, or name -> scheduler.
        scaler: gradient scaler.
        extra: name -> anything with ``state_dict`` and ``load_state_dict``, or a random generator.  A
            ``check_state_dict`` that it has too gets the stored state in `restore`, before anything is
            touched, and may raise.
        every: optimizer steps between saves, or a time such as ``"30min"``.
        evaluate: takes nothing, or the model; returns a number, or one a batch, on fixed held-out batches.
            It is called in evaluation mode, without gradients.  None: a fixed careful configuration is used.
        threshold: allowed relative degradation at each checkpoint, a share (0.01 = 1%).
        mode: whether the metric is to be minimised ("min") or maximised ("max").
        method: name, mapping with a name and options, or method object; None: that of the checkpoint that was
            restored, and in a fresh run the project's default, "lattice".
        moments: policy for optimizer moments: "8bit", "exact", "compact", "minimal", "sparse", "second"
            or "none".
        exact: name patterns kept bit for bit; "*" is everything.
        window: optimizer steps before a save in which gradients are averaged (paper sec. 4.1: 50).
        max_chain: deltas between a checkpoint and its key, at most.
        keep_last, keep_every, keep_within: retention, as in `CheckpointStore`.
        on_error: whether a save that fails raises ("raise") or is logged ("warn"); training is untouched
            either way.
        save_on: signals, such as ``("SIGTERM",)``, after which the next `step` saves and waits for the
            commit, or the end of the ``with`` block, by an error too, if there was a `step` or `save` before.
            The process is not ended: look at `requested_by`.  Main thread only.  Forked children (data
            loaders) do not inherit it.

    Raises:
        ConfigError: an argument, or DYNAQUANT_THREADS, is of the wrong type or out of range.
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
        >>> Checkpointer(folder.name, model, optimizer).restore()
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
        extra: Mapping[str, Any] | None = None,
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
        save_on: str | Iterable[str] | None = (),
    ) -> None:
        require_choice("Checkpointer", "on_error", on_error, ("raise", "warn"))
        require_choice("Checkpointer", "mode", mode, ("min", "max"))
        require_threshold("Checkpointer", threshold)
        require_number("Checkpointer", "window", window, 0, math.inf, open_high=True)
        self._subject = Subject(model, optimizer, scheduler, scaler, extra or {})
        look_at_subject(self._subject)
        look_at_threads()
        self._schedule = parse_every(every)
        self._searches = evaluate is not None
        beside = [part for part in (extra or {}).values() if isinstance(part, nn.Module)]
        promise = evaluate and Promise(Evaluation(evaluate, model, beside), threshold, mode)
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
        self._chooser = Chooser(promise, manager_for(self.store.method))
        self._window = window
        self._process = os.getpid()
        self._turn = turn()  # a save from another thread would take candidates for the weights
        self._turns = Turns()  # and so would one that a signal's handler makes on this thread
        self._completed = 0
        self._closed = False
        self._enabled = not is_disabled()
        self._tried = not self._enabled  # whether the log would have said what cannot be saved
        look_at_folder(self.store.path, enabled=self._enabled)
        signals = SignalFlag(save_on if self._enabled else ())
        watched = self._subject.optimizers.values() if self._enabled else ()
        self._stepping = Stepping(watched)
        # Movement counts from the first step of a life: `dynaquant log` says what checkpoints lost of it.
        searched = self._subject.models.values() if self._enabled and self._searches else ()
        self._begun = Begun(searched, watched if searched else ())
        self._collector = GradientCollector(
            watched, parameter_names(self._subject.models), spare=spares_gradients(self.store.method)
        )
        self._worker: Worker[CheckpointInfo] = Worker(self.store.path)
        self._answer = Answer(signals, self._worker)
        saver = Saver(self.store, self._subject, self._chooser, self._collector, self._worker, self._begun)
        untold = Untold(self._stepping)
        self._saves = Saves(self.store, saver, self._worker, self._answer, untold, raises=on_error == "raise")
        self._look_ahead()

    @property
    def completed(self) -> int:
        """Optimizer steps completed, those before a restore included."""
        return self._completed

    @property
    def last(self) -> CheckpointInfo | None:
        """The checkpoint that this object committed last; None before the first."""
        return self._worker.result

    @property
    def requested_by(self) -> str | None:
        """The signal of ``save_on`` that was last answered with a save; None where none was."""
        return self._answer.by

    def restore(self, step: int | None = None, *, fresh: str | Iterable[str] = ()) -> int:
        """Puts model, optimizer, scheduler, scaler, extra and random streams back.

        What the checkpoint holds and the run does not have is left out, with a line in the log.

        Args:
            step: None: the newest whole checkpoint; where one is damaged, the one before is taken and the log
                says so.  A number: that checkpoint, or an error.
            fresh: parts that are new to the run and begin as they are where the checkpoint has none, or one
                of another kind, with a line in the log: "scheduler", "scaler", "extra.NAME", "scheduler.NAME"
                of several.  With a scheduler the learning rates that it has set stay, unless it sets none
                when it is made (`ReduceLROnPlateau`) or another of its optimizer comes back.

        Returns:
            Completed optimizer steps at the checkpoint; 0, and nothing touched, where the folder is missing
            or empty.  Ranks fall back each by itself: compare what they get (docs/troubleshooting.md).

        Raises:
            ConfigError: ``fresh`` names what is no part of the run; lists those that are.
            CheckpointNotFoundError: ``step`` is not in the store.
            StateMismatchError: the checkpoint does not fit, or lacks a part that is not in ``fresh``; names
                the tensors, or the part; nothing was touched, unless the message says that an object of the
                run refused its state only when others had theirs.
            SaveError: a save is under way further up the stack, or another `restore`.
            EmptyStoreError: there are checkpoints and none is whole.
            NotAStoreError: the folder holds something else.
            CorruptFileError: the checkpoint of ``step`` is damaged.
        """
        self._require_open()
        with self._turn:
            self._turns.require_none()
            self.wait()
            await_all(self.store.path)
            found: list[int] = []
            self._turns.take(lambda: found.append(self._restored(step, fresh)))
            return found[0]

    def step(self) -> None:
        """Tells that one optimizer step is complete; saves if one is due, or was asked for by a signal.

        Call it last, and once: after the steps of all optimizers, the scaler's ``update`` and the schedulers'
        steps, whose state would else be that of the step before when the run is restored.

        Raises:
            SaveError: a save in the background failed since the last call; training may go on.
            EvaluationError: evaluate failed; an exact checkpoint was committed instead.
            StoreNotEmptyError: told at the first step, as `save`.
            DynaQuantError: a save that was due failed on this thread; training may go on.
        """
        self._require_open()
        with self._turn:
            self._completed += 1
            self._begun.now()  # where no optimizer has told of the step
            self._schedule.advance(self._completed)
            for save in self._stepping.tell():
                self._turns.take(save)
            if not self._saves.answer(self._completed, self.save):
                with told(raises=self._saves.raises):
                    self._worker.check()
                if self._schedule.due():
                    self.save()
            if not self._tried:  # said after the first step, not when the first save is due
                self._tried = True
                warn_of_unsavable(self._subject, self._completed)
                self._saves.look_ahead()
            self._look_ahead()

    def save(self, *, threshold: float | None = None) -> None:
        """Saves the state as that of the last `step`, due or not; when this returns, it may change again.

        In the middle of another save, where a signal's handler may be, the model holds a candidate: the save
        follows when the other has ended, however it ends, and `close` follows that.  The handler may raise
        SystemExit: the process ends when the checkpoint is committed.  It must not call ``os._exit``.
        In the middle of an optimizer's step, where half of the weights have moved, the next `step` makes the
        save, and nobody if the process ends before; where a handler asks between the two, `close` does then.
        In the middle of `restore` it follows too, and is left out where a checkpoint was put back, which the
        store has, or in part only.

        Args:
            threshold: of this checkpoint alone, such as a tighter one for the last, which will be used from
                its file; None: the run's.  Other checkpoints and their searches are as without it.

        Raises:
            ConfigError: ``threshold`` is no share, or there is no ``evaluate`` to measure with.
            SaveError: the save before failed in the background, or an optimizer's step ended in an error (as
                by Ctrl-C); nothing was saved now.
            EvaluationError: evaluate failed; an exact checkpoint was committed instead.
            StoreNotEmptyError: the folder holds another run's checkpoints and none was restored.
            NotAStoreError: it held other files and no checkpoint when this object was made, and still does.
            DynaQuantError: this save failed on this thread; training may go on.
        """
        if self._closed and self._turns.busy:  # asked for by a handler, in the last moment of `close`
            return
        self._require_open()
        if threshold is not None:
            require_threshold("Checkpointer", threshold)
            require(self._searches, "Checkpointer: a threshold to save within takes evaluate= to measure.")
        with self._turn:
            waits = not self._turns.busy and self._stepping.must_wait
            follows = self._turns.busy or waits
            save = partial(self._save, threshold, again=not follows or threshold is not None)
            self._stepping.postpone(save, self.close) if waits else self._turns.take(save)

    def _save(self, threshold: float | None, *, again: bool) -> None:
        try:
            if self._enabled:
                self._tried = True
                self._saves.make(self._completed, threshold, again=again)
        finally:  # after a failure too: the next attempt is at the next due step
            self._begin_interval()

    def wait(self) -> CheckpointInfo | None:
        """Waits until the save in the background is committed; returns the info of the last checkpoint.

        In the middle of a save, where a signal's handler may be, there is none to wait for yet.

        Raises:
            SaveError: a save failed since the last call.
        """
        with self._turn, told(raises=self._saves.raises):
            if not self._turns.busy:  # else its thread may be about to start, and wait for this one
                self._worker.wait()
        return self.last

    def close(self) -> None:
        """Waits for the save in the background, takes hooks and signal handlers off, gives the store back.

        In a forked child nothing happens: save, thread and lock are its parent's.

        Raises:
            SaveError: a save failed in the background at any time, told before or not.
        """
        if self._closed or self._process != os.getpid():
            return
        with self._turn:
            try:
                for save in self._stepping.left():
                    self._turns.take(save)
                while self._worker.busy and not self._turns.busy:  # a handler may save, which follows
                    self._turns.take(partial(await_all, self.store.path))
            finally:
                self._turns.take(self._close)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                with told(raises=self._saves.raises):
                    self._worker.close()
            finally:
                self._collector.close()
                self._stepping.close()
                self._begun.close()
                self._answer.close()
                self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:  # the loop's own error is the one to see; a failed save goes to the log
            self._saves.raises = False
        try:
            if not self._closed and self._process == os.getpid():
                self._saves.answer(self._completed, self.save, last=True)
        finally:
            self.close()

    def _restored(self, step: int | None, fresh: str | Iterable[str]) -> int:
        try:
            resumed = resume(self.store, self._subject, step, fresh)
        except BaseException as error:
            self._saves.not_restored(error)
            raise
        if resumed is not None:
            self._completed, self._chooser.state = resumed.step, resumed.search
        self._saves.restored(None if resumed is None else resumed.step)
        if self._enabled:
            warn_of_unwritable(self.store.path)
        if resumed is None:
            return 0
        self._chooser.manager = manager_for(self.store.method)
        self._collector.spare = spares_gradients(self.store.method)
        self._begun.again()
        self._stepping.restored()
        self._begin_interval()
        logger.info("restored step %d from %s", resumed.step, self.store.path)
        return resumed.step

    def _begin_interval(self) -> None:
        self._schedule.saved(self._completed)
        self._collector.stop()
        self._look_ahead()

    def _look_ahead(self) -> None:
        self._collector.follow(self._schedule.steps_left(), self._window)

    def _require_open(self) -> None:
        if self._closed:
            raise SaveError("the Checkpointer is closed; make a new one to go on.")
