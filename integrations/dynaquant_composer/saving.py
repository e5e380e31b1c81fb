"""Composer's events translated: when to look ahead, to search, to commit, to let appear and to rotate."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from composer.callbacks import CheckpointSaver
from composer.core import Event, State, Time
from composer.loggers import Logger
from composer.utils import dist
from composer.utils.file_helpers import format_name_with_dist

from dynaquant_composer.evaluation import Evaluation, bare_model, unheard_of
from dynaquant_composer.fit import explain_misfits, stop_explaining
from dynaquant_composer.folder import finish, note_of, publish, retire, unmark
from dynaquant_composer.guard import require_whole_weights, say_what_is_untested
from dynaquant_composer.names import Names
from dynaquant_composer.pointer import SUFFIX, folder_of, read_by, stop_reading_by, was_read
from dynaquant_composer.schedule import batches_left
from dynaquant_composer.state import state_of
from dynaquant_composer.sweeping import sweep
from dynaquant_core import CheckpointInfo
from dynaquant_core.plugins import PluginOptions, PluginRun, Turns, figures_of, is_checkpoint
from dynaquant_core.plugins.agreement import on_all_ranks
from dynaquant_core.plugins.small_files import told

__all__ = ["FolderSaver"]

logger = logging.getLogger(__name__)

#: When Composer's schedule may ask for a save.
SCHEDULED: Final = (Event.BATCH_CHECKPOINT, Event.EPOCH_CHECKPOINT, Event.ITERATION_CHECKPOINT)

#: Where Composer keeps what is trained.
HOMES: Final = ("state.model", "state.optimizers")

#: The pattern under which every bit is kept, so that there is nothing to measure.
EVERYTHING: Final = "*"


class FolderSaver(CheckpointSaver):
    """A `CheckpointSaver` whose checkpoints `PluginRun` writes.

    Args:
        options: how they are made.
        interval: the schedule as a time, or None where it is a function.
        metric: name of the evaluators' metric to search by, or None.
        **names_and_times: of `CheckpointSaver`.
    """

    def __init__(
        self, options: PluginOptions, interval: Time[Any] | None, metric: str | None, **names_and_times: Any
    ) -> None:
        super().__init__(**names_and_times)
        if options.evaluate is not None:
            options = replace(options, evaluate=unheard_of(options.evaluate, lambda: self._around))
        self._around: tuple[State, Logger] | None = None  # what a trainer tells of what it does
        self._options, self._interval, self._metric = options, interval, metric
        self._run = PluginRun(options, framework="composer", report=self._committed)
        self._run.compress_only(*HOMES)
        self.saved_checkpoints: list[str] = []
        self._pending: deque[tuple[int, Path, Path | None]] = deque()
        self._destinations: Logger | None = None
        self._loaded: Path | None = None
        self._measured: tuple[object, Callable[[], float] | None] | None = None
        self._due = False  # whether the schedule asks for a save, and nobody else
        self._turns = Turns()

    @property
    def last(self) -> CheckpointInfo | None:
        """The checkpoint committed last; None before the first, and on ranks other than 0."""
        return self._run.last

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """As Composer's own; saves of the schedule end in the background."""
        self._due = event in SCHEDULED
        try:
            super().run_event(event, state, logger)
        finally:
            self._due = False

    def state_dict(self) -> dict[str, Any]:
        """The files of all callbacks of this kind: Composer keeps one state for the class, that of the last.

        Among them what another is going to save at this moment, if it is: the state is taken before.
        """
        saved = dict(self.all_saved_checkpoints_to_timestamp)
        if self._around is not None:
            state, _ = self._around
            for one in (each for each in state.callbacks if isinstance(each, FolderSaver)):
                saved |= one.all_saved_checkpoints_to_timestamp
                saved.setdefault(str(Path(one.filename.format(state))), state.timestamp)
        listed = [(file, timestamp.state_dict()) for file, timestamp in saved.items()]
        return {**super().state_dict(), "all_saved_checkpoints_to_timestamp": listed}

    def init(self, state: State, logger: Logger) -> None:
        """Refuses what is not supported, then as Composer's own."""
        require_whole_weights(state)
        say_what_is_untested(logger)
        self._destinations = logger
        self._around = state, logger
        super().init(state, logger)

    def before_load(self, state: State, logger: Logger) -> None:  # noqa: ARG002 - an event's arguments
        """What the process before committed is there to be loaded; and the next save builds on what is."""
        if dist.get_global_rank() == 0:
            finish(self._names(state), self._latest(state))
        dist.barrier()
        read_by(self._read, state)
        explain_misfits(state)

    def after_load(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Loading is over."""
        folder = was_read()
        self._loaded = None if folder is None else folder.with_name(folder.name.removesuffix(SUFFIX))
        stop_reading_by(self._read)
        stop_explaining(state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Watches what is trained."""
        require_whole_weights(state)  # FSDP wraps after `init`
        with on_all_ranks(int(state.timestamp.batch)):
            if dist.get_global_rank() == 0:
                self._run.wait()  # after an exception a fit begins while the last one's save is under way
                self._pending.clear()  # these failed
                sweep(self._names(state))
                if not self.saved_checkpoints:  # rotation goes on where the run before was
                    self.saved_checkpoints = self._still_there(state)
        super().fit_start(state, logger)
        self._watch(state)

    def batch_start(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """Foresees the next save, and lets appear what was committed meanwhile."""
        self._run.look_ahead(batches_left(self._interval, state))

    def fit_end(self, state: State, logger: Logger) -> None:
        """All checkpoints are there when ``fit`` returns."""
        with on_all_ranks(int(state.timestamp.batch)):
            self._run.wait()
        super().fit_end(state, logger)

    def close(self, state: State, logger: Logger) -> None:
        """Waits and lets go."""
        super().close(state, logger)
        self._run.close()
        self._around = None

    def _save_checkpoint(self, state: State, logger: Logger) -> None:  # noqa: ARG002
        """In place of Composer's own; every rank comes here.

        A save that a signal's handler asks for in the middle of another follows that one.
        """
        self._turns.take(partial(self._save, state))

    def _save(self, state: State) -> None:
        require_whole_weights(state)
        self._watch(state)  # an algorithm or a callback may have put another model there
        self.last_checkpoint_batch = state.timestamp.batch
        file = Path(self.filename.format(state))
        self.all_saved_checkpoints_to_timestamp[str(file)] = state.timestamp
        step = int(state.timestamp.batch)
        tree = state_of(state, self.weights_only, self.ignore_keys)
        self._run.choose(step, tree)
        with on_all_ranks(int(state.timestamp.batch)):
            if dist.get_global_rank() == 0:
                file, latest = file.absolute(), self._latest(state)  # the process may go elsewhere meanwhile
                self._pending.append((step, file, latest))
                if self._run.enabled:
                    unmark(file)
                self._run.save(folder_of(file), step, tree, note=note_of(file, latest))
                if not self._due or _is_over(state):
                    self._run.wait()  # the user asked for it and looks at once, or nothing is left to do

    def _committed(self, info: CheckpointInfo) -> None:
        """Called on the training thread once a checkpoint is whole."""
        while self._pending and self._pending[0][0] != info.step:
            self._pending.popleft()  # that save failed
        if self._pending:
            _, file, latest = self._pending.popleft()
            with told(raises=self._options.on_error == "raise"):
                self._appear(file, latest)
        if self._destinations is not None:
            self._destinations.log_metrics(figures_of(info))

    def _appear(self, file: Path, latest: Path | None) -> None:
        """Shows a checkpoint and rotates; where it cannot be shown, nothing goes."""
        others = [name for name in self.saved_checkpoints if name != str(file)]
        self.saved_checkpoints = [*others, str(file)]
        if not publish(file, latest):
            self.saved_checkpoints = others
        if self.num_checkpoints_to_keep >= 0:
            self._rotate_checkpoints()

    def _rotate_checkpoints(self, sharding_enabled: bool = False) -> None:  # noqa: ARG002
        while len(self.saved_checkpoints) > self.num_checkpoints_to_keep:
            file = Path(self.saved_checkpoints.pop(0))
            retire(file)
            self._run.remove(folder_of(file))

    def _names(self, state: State) -> Names:
        folder = Path(format_name_with_dist(self.folder, state.run_name))
        return Names(folder, self.filename.filename, state.run_name)

    def _still_there(self, state: State) -> list[str]:
        """Those of the run's files that stand for a whole checkpoint in this callback's folder."""
        found = self._names(state).own(self.all_saved_checkpoints_to_timestamp, self._loaded)
        return [str(file) for file in found if file.is_file() and is_checkpoint(folder_of(file))]

    def _latest(self, state: State) -> Path | None:
        """The link to the latest, as an absolute path; None where nothing is to be linked to."""
        if self.latest_filename is None or self.num_checkpoints_to_keep == 0:
            return None
        return Path(self.latest_filename.format(state)).absolute()

    def _read(self, folder: Path) -> Any:
        tree = self._run.load(folder, weights_only=False)  # as Composer reads its own
        if self.weights_only and "optimizers" in tree["state"]:
            self._run.stand_alone()
        return tree

    def _watch(self, state: State) -> None:
        self._around = None if self._destinations is None else (state, self._destinations)
        self._run.watch(bare_model(state), state.optimizers, evaluate=self._evaluate(state))

    def _evaluate(self, state: State) -> Callable[[], float] | None:
        """The evaluators' measure; for the same ones the same object again, so that the search goes on."""
        if self._options.evaluate is not None or not state.evaluators or EVERYTHING in self._options.exact:
            return None
        key = (state, [(each.label, list(state.eval_metrics[each.label])) for each in state.evaluators])
        if self._measured is None or self._measured[0] != key:
            self._measured = (key, self._measure_of(state))
        return self._measured[1]

    def _measure_of(self, state: State) -> Callable[[], float] | None:
        if self._metric is None and not any(state.eval_metrics[each.label] for each in state.evaluators):
            logger.warning(
                "no evaluator has a metric, so a fixed careful configuration takes the place of the search: "
                "let the model's get_metrics(is_train=False) return one, or give evaluate="
            )
            return None
        return Evaluation(state, self._metric, self._options.mode)


def _is_over(state: State) -> bool:
    return state.max_duration is not None and bool(state.timestamp >= state.max_duration)
