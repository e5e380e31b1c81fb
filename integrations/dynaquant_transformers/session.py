"""One call of ``trainer.train()``: what is watched, when a checkpoint is made, and when it gets its name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from torch.optim import Optimizer
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME

from dynaquant_core import CheckpointInfo
from dynaquant_core.errors import DynaQuantError, StorageError
from dynaquant_core.plugins import PluginOptions, PluginRun, Turns, figures_of
from dynaquant_core.plugins.agreement import on_all_ranks, rank, ranks
from dynaquant_core.plugins.refusal import is_refusal
from dynaquant_transformers.awaited import goes_on, on_any_rank, reads_saves
from dynaquant_transformers.bare import put_signpost, remove_weights, without_weights
from dynaquant_transformers.evaluation import TrainerEvaluation, shadowed, unheard_of
from dynaquant_transformers.native import digests, require_readable
from dynaquant_transformers.places import Place, newest_whole, require_whole
from dynaquant_transformers.schedule import steps_an_epoch, steps_left
from dynaquant_transformers.shelf import Shelf
from dynaquant_transformers.support import FRAMEWORK, require_own, require_supported
from dynaquant_transformers.weights import ADAPTERS, adapters_of, are_live, weights_of

__all__ = ["OPTIMIZER", "Session"]

logger = logging.getLogger(__name__)

#: Key of the optimizer's state in a checkpoint's tree.
OPTIMIZER = "optimizer"


class Session:
    """Makes the checkpoints of one training.

    Args:
        trainer: it trains in this process alone or data parallel.
        options: how checkpoints are made.
        eval_batches: how many batches of each evaluation set the search uses; None: all.

    Attributes:
        run: what encodes and commits.

    Raises:
        ConfigError: the trainer's mode is not supported.
    """

    def __init__(self, trainer: Trainer, options: PluginOptions, eval_batches: int | None) -> None:
        require_supported(trainer)
        self.trainer = trainer
        limit = trainer.args.save_total_limit or 0  # below 1 the Trainer removes none
        if limit > 0:  # beyond it a chain keeps more files alive than it makes smaller
            options = replace(options, max_chain=min(options.max_chain, limit - 1))
        if options.evaluate is not None:
            options = replace(options, evaluate=unheard_of(trainer, options.evaluate))
        self._raises = options.on_error == "raise"
        self.run = PluginRun(options, framework=FRAMEWORK, report=self._report)
        has_data = trainer.eval_dataset is not None
        self._evaluate = TrainerEvaluation(trainer, eval_batches) if has_data else None
        self._found: tuple[Path | None, Any] = (None, None)  # read to see whether it is whole
        self._shelf = Shelf(trainer)
        self._turns = Turns()
        self._unmet = False  # whether something was saved since all ranks have found what there is
        self._goes_on = goes_on(trainer)
        self._place: Place | None = None  # of the checkpoint that is being made at this moment
        self._output = ""  # how the Trainer calls the folder in which it will stand
        self._written = False  # whether the Trainer's own part of it is done, and ours
        self._sent = False  # whether that is done in the hidden folder, from its beginning on

    # -- what happens in a training, in order ------------------------------------------------------

    def find(self, wanted: str | bool | None) -> str | None:
        """The folder to resume from: ``resume_from_checkpoint`` of the Trainer, True replaced.

        Rank 0 looks for the newest one, and the others go on from that one or all end: each passing over what
        it cannot read itself would train from another step.  Where there is no checkpoint yet, True means to
        begin, so that a job which is started again and again needs no case for its first start.

        Raises:
            EmptyStoreError: there are checkpoints and none of them is whole.
            StorageError: a rank cannot read the one that rank 0 has found; SaveError on the others.
            StoreLockedError: another process is making checkpoints there.
        """
        output = Path(self.trainer.args.output_dir)
        self._shelf.open(output.absolute())
        if wanted is not True:
            return None if wanted is False else wanted
        newest = self._newest(output)
        if newest is None:
            logger.warning("there is no checkpoint in %s yet: training begins at step 0", output)
        return newest

    def _newest(self, output: Path) -> str | None:
        found: list[str | None] = [None]
        with on_all_ranks(0):
            if rank() == 0:
                newest = newest_whole(output, self._try_to_read)
                found = [None if newest is None else newest.name]
        if ranks() > 1:
            broadcast_object_list(found)
        (name,) = found
        with on_all_ranks(0):
            if name is not None and rank() > 0:
                require_whole(output / name, self._try_to_read)
        return None if name is None else str(output / name)

    def read(self, folder: Path) -> Any:
        """The tree of a checkpoint of ours; the next checkpoint may build on it."""
        (where, tree), self._found = self._found, (None, None)
        return tree if where == folder else self.run.load(folder)

    def watch(self, optimizer: Any) -> None:
        """Averages the gradients that this optimizer steps with, from now on."""
        inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper steps without hooks
        optimizers = [inner] if isinstance(inner, Optimizer) else []
        model = self.trainer.model  # made only now where there is a `model_init`
        if not are_live(weights_of(model), model):  # made for saving only: nothing could be tried in them
            self.run.keep_exact(ADAPTERS)
        self.run.watch(model, optimizers, evaluate=self._evaluate)

    def step_begins(self, loader: Any) -> None:
        """Before an optimizer step: whether its gradients are wanted; what was committed meanwhile."""
        args, state = self.trainer.args, self.trainer.state
        self.run.look_ahead(steps_left(args, state, steps_an_epoch(args, loader)))

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
        trainer = self.trainer
        output = trainer._get_output_dir(trial=trial)
        place = Place(Path(output).absolute(), trainer.state.global_step)
        self._unmet = True
        with self._tolerance():
            self.run.meet(place.step)
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
        if self.trainer.args.should_save:  # a method of a subclass's own may bring weights
            with without_weights(place.making, adapters_of(self.trainer.model)):
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
        trainer = self.trainer
        self._shelf.bring_out(place)  # once each rank has written its random streams there
        goes_on, hears, made = on_any_rank(
            came and self._goes_on and self.run.enabled, reads_saves(trainer), came or place.has_files()
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
        self.run.choose(place.step, tree)
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

    def log_ends(self) -> None:
        """The Trainer's last line is in its history: it stays the last one."""
        history = self.trainer.state.log_history
        last = history.pop() if history and "train_runtime" in history[-1] else None
        try:
            self.settle()
        finally:
            if last is not None:
                history.append(last)
            self._agree_on_best()

    def settle(self) -> None:
        """Waits until the last checkpoint is committed and has its name."""
        self.run.wait()
        self._shelf.put()

    def end(self) -> None:
        """Training ended well: every rank finds the checkpoints, and another training may save beside them.

        Callbacks that hear of it later may still save: what is watched stays so until `finish`.
        """
        self._for_all(self._put_everything)

    def finish(self) -> None:
        """`close` where ``train()`` ended well, on every rank; all find what was saved since `end`, too."""
        if self._unmet:
            self._for_all(self.close)
        else:
            self.close()

    def _for_all(self, act: Callable[[], None]) -> None:
        """What fails is raised once the others need not wait for this rank any more."""
        problem: Exception | None = None
        try:
            act()
        except (DynaQuantError, OSError) as error:
            problem = error
        self.trainer.accelerator.wait_for_everyone()
        self._unmet = False
        if problem is not None:
            raise problem

    def close(self) -> None:
        """Ends the session; every checkpoint that was begun is committed and has its name."""
        try:
            self.run.close()
        finally:
            self._shelf.close()

    def give_up(self) -> None:
        """`close` where training failed: what failed here only goes to the log."""
        try:
            self.close()
        except Exception as error:  # noqa: BLE001 - training's own error is the one to tell
            logger.error("the last checkpoint is not there: %s", error)

    def _put_everything(self) -> None:
        try:
            self.run.wait()
        finally:
            self._shelf.close()

    @contextmanager
    def _tolerance(self) -> Iterator[None]:
        """What the system refuses is one sentence, and only logged where saves that fail are to be warnings.

        With several ranks it always ends the training: the others would wait for this one.
        """
        best = self.trainer.state.best_model_checkpoint
        try:
            yield
        except (OSError, RuntimeError) as error:
            if not is_refusal(error):
                raise
            self.trainer.state.best_model_checkpoint = best
            step = self.trainer.state.global_step
            told = isinstance(error, StorageError)  # which says what and where already
            reason = error if told else getattr(error, "strerror", None) or error
            if self._raises or self.trainer.args.world_size > 1:
                if told:
                    raise
                raise StorageError(f"the checkpoint of step {step} cannot be written: {reason}") from error
            logger.warning("training goes on without a checkpoint of step %d: %s", step, reason)

    # -- parts -------------------------------------------------------------------------------------

    def _try_to_read(self, folder: Path) -> None:
        require_own(folder)
        require_readable(folder)
        self._found = (folder, self.run.load(folder))

    def _tree(self) -> dict[str, Any]:
        """What would lie in the native files of weights and optimizer; the tensors are the live ones."""
        tree: dict[str, Any] = weights_of(self.trainer.model)
        if not self.trainer.args.save_only_model:
            tree[OPTIMIZER] = self.trainer.optimizer.state_dict()
        return tree

    def _agree_on_best(self) -> None:
        """The rank that saves alone knows whether the best checkpoint has come; all load it, or none does."""
        args, state = self.trainer.args, self.trainer.state
        if args.world_size > 1 and args.load_best_model_at_end:
            (state.best_model_checkpoint,) = broadcast_object_list([state.best_model_checkpoint])

    def _commit(self, place: Place, tree: dict[str, Any]) -> None:
        path = place.making / TRAINER_STATE_NAME
        self.trainer.state.save_to_json(str(path))  # again: it holds the name of the best
        self._shelf.expect(place)
        self.run.save(place.making, place.step, tree, note=digests(place.making))

    def _report(self, info: CheckpointInfo) -> None:
        """Logs what a checkpoint cost, through the Trainer; subclasses' own logs are left alone."""
        Trainer.log(self.trainer, figures_of(info))
        self._shelf.put()


class _NeverCameError(Exception):
    """A save has failed, which is only logged, and a method of a subclass would go on to what it saved."""
