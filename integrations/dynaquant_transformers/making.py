"""One checkpoint of a training: where it is made, by whose methods, and what of it is native."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME

from dynaquant_core.errors import StorageError
from dynaquant_core.plugins import PluginRun, Turns
from dynaquant_core.plugins.agreement import on_all_ranks, ranks
from dynaquant_core.plugins.refusal import is_refusal
from dynaquant_transformers.awaited import goes_on, on_any_rank, reads_saves
from dynaquant_transformers.bare import put_signpost, remove_weights, without_weights
from dynaquant_transformers.evaluation import shadowed
from dynaquant_transformers.native import digests
from dynaquant_transformers.places import Place
from dynaquant_transformers.shelf import Shelf
from dynaquant_transformers.weights import OPTIMIZER, adapters_of, weights_of

__all__ = ["Making"]

logger = logging.getLogger(__name__)


class Making:
    """Makes the checkpoints of one training, one after the other.

    Args:
        trainer: which trains.
        run: what encodes and commits.
        shelf: where checkpoints go.
        raises: whether a save that the system refuses ends a training of one process.
    """

    def __init__(self, trainer: Trainer, run: PluginRun, shelf: Shelf, *, raises: bool) -> None:
        self._trainer, self._run, self._shelf, self._raises = trainer, run, shelf, raises
        self._turns = Turns()
        self._goes_on = goes_on(trainer)
        self._place: Place | None = None  # of the checkpoint that is being made at this moment
        self._output = ""  # how the Trainer calls the folder in which it will stand
        self._written = False  # whether the Trainer's own part of it is done, and ours
        self._sent = False  # whether that is done in the hidden folder, from its beginning on

    def is_making(self, folder: str | None) -> bool:
        """Whether ``folder`` is that of the checkpoint being made, by the name that it has by then."""
        if folder is None or self._place is None:
            return False
        return Path(folder).absolute() == (self._place.making if self._sent else self._place.final)

    def save(self, save_natively: Callable[[Any, Any], None], model: Any, trial: Any) -> None:
        """Makes a checkpoint, all ranks together; when it returns, training may go on.

        One that a signal's handler asks for in the middle of another follows that one.

        Args:
            save_natively: the trainer's ``_save_checkpoint``, a subclass's too, which comes to `write`.
            model: its first argument.
            trial: its second one.
        """
        self._turns.take(partial(self._make, save_natively, model, trial))

    def _make(self, save_natively: Callable[[Any, Any], None], model: Any, trial: Any) -> None:
        trainer = self._trainer
        output = trainer._get_output_dir(trial=trial)
        place = Place(Path(output).absolute(), trainer.state.global_step)
        with self._tolerance():
            self._run.meet(place.step)
            self._shelf.put()
            self._shelf.begin(place)
            self._place, self._output, self._written, self._sent = place, output, False, False
            try:
                with shadowed(trainer, "_get_output_dir", self._sent_to):
                    save_natively(model, trial)
                    if not self._written:  # a subclass's that does it all itself
                        self._shelf.take_early(place)
                        self._complete(place, came=False)
                if self._place != place:  # it has its name already
                    self._shelf.take_late(place)
            except _NeverCameError:
                logger.warning(
                    "step %d has no checkpoint: what %s does with one after it is saved is left out",
                    place.step,
                    type(trainer).__name__,
                )
            finally:
                self._place = None

    @property
    def is_saving(self) -> bool:
        """Whether a save has begun that has not come to the Trainer's own part yet."""
        return self._place is not None and not self._written

    def write(self, write_native: Callable[[], None]) -> None:
        """The Trainer's own part of a save: its files, and with them the checkpoint.

        All that the ranks do together comes before the search: where one of them cannot measure, or is
        silent, the others leave, and the one that saves commits alone.  They meet once more where somebody
        wants to find the checkpoint: a callback that hears of it, or a subclass when this returns.

        Args:
            write_native: the Trainer's ``_save_checkpoint``.
        """
        place = self._place
        assert place is not None
        self._shelf.take_early(place)
        self._sent = True
        if self._trainer.args.should_save:  # a method of a subclass's own may bring weights
            with without_weights(place.making, adapters_of(self._trainer.model)):
                write_native()
        else:
            write_native()
        self._complete(place, came=True)

    def _complete(self, place: Place, *, came: bool) -> None:
        """Makes a checkpoint of the native files; of none, where a subclass has left this save out.

        Args:
            place: its folders.
            came: whether the Trainer's own part has written the files.
        """
        trainer = self._trainer
        self._shelf.bring_out(place)  # once each rank has written its random streams there
        goes_on, hears, made = on_any_rank(
            came and self._goes_on and self._run.enabled, reads_saves(trainer), came or place.has_files()
        )
        if not made:
            self._shelf.drop(place)
            return
        tree, adapters = self._tree(), adapters_of(trainer.model)
        if trainer.args.should_save and not came:
            remove_weights(place.making, adapters)
        if trainer.args.should_save and not adapters:
            put_signpost(place.making)
        place.name_best(trainer.state, self._output, self._shelf.lost)
        self._run.choose(place.step, tree)
        with on_all_ranks(place.step) if goes_on or hears else nullcontext():
            if trainer.args.should_save:
                self._commit(place, tree)
                if goes_on or hears:
                    self.settle()
        self._written = True
        if goes_on:
            self._require_there(place)
            self._place = None  # the Trainer is not sent elsewhere any more
            if trainer.args.should_save:  # who was told of it in the Trainer's part may still write there
                place.making.mkdir(parents=True, exist_ok=True)  # gone where files cannot have two names

    def _require_there(self, place: Place) -> None:
        """Leaves the methods of a subclass, on all ranks, where a save that failed was only logged."""
        came = [place not in self._shelf.lost]
        if ranks() > 1:
            broadcast_object_list(came)
        if not came[0]:
            raise _NeverCameError

    def _sent_to(self, trial: Any = None) -> str:  # noqa: ARG002 - the Trainer's own argument
        """The Trainer's own part alone, with what it calls, is sent to the hidden folder."""
        return self._output if self._place is None or not self._sent else str(self._place.workshop)

    def settle(self) -> None:
        """Waits until the last checkpoint is committed and has its name."""
        self._run.wait()
        self._shelf.put()

    @contextmanager
    def _tolerance(self) -> Iterator[None]:
        """What the system refuses is one sentence, and only logged where saves that fail are to be warnings.

        With several ranks it always ends the training: the others would wait for this one.
        """
        best = self._trainer.state.best_model_checkpoint
        try:
            yield
        except (OSError, RuntimeError) as error:
            if not is_refusal(error):
                raise
            self._trainer.state.best_model_checkpoint = best
            step = self._trainer.state.global_step
            told = isinstance(error, StorageError)  # which says what and where already
            reason = error if told else getattr(error, "strerror", None) or error
            if self._raises or self._trainer.args.world_size > 1:
                if told:
                    raise
                raise StorageError(f"the checkpoint of step {step} cannot be written: {reason}") from error
            logger.warning("training goes on without a checkpoint of step %d: %s", step, reason)

    def _tree(self) -> dict[str, Any]:
        """What would lie in the native files of weights and optimizer; the tensors are the live ones."""
        tree: dict[str, Any] = weights_of(self._trainer.model)
        if not self._trainer.args.save_only_model:
            tree[OPTIMIZER] = self._trainer.optimizer.state_dict()
        return tree

    def _commit(self, place: Place, tree: dict[str, Any]) -> None:
        path = place.making / TRAINER_STATE_NAME
        self._trainer.state.save_to_json(str(path))  # again: it holds the name of the best
        self._shelf.expect(place)
        self._run.save(place.making, place.step, tree, note=digests(place.making))


class _NeverCameError(Exception):
    """A save has failed, which is only logged, and a method of a subclass would go on to what it saved."""
