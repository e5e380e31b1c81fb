"""One call of ``trainer.train()``: from where it goes on, what is watched, and when all is on the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from torch.optim import Optimizer
from transformers import Trainer

from dynaquant_core import CheckpointInfo
from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins import PluginOptions, PluginRun, figures_of
from dynaquant_core.plugins.agreement import on_all_ranks, rank, ranks
from dynaquant_transformers.evaluation import TrainerEvaluation, unheard_of
from dynaquant_transformers.making import Making
from dynaquant_transformers.native import require_readable
from dynaquant_transformers.places import newest_whole, require_whole
from dynaquant_transformers.schedule import steps_an_epoch, steps_left
from dynaquant_transformers.shelf import Shelf
from dynaquant_transformers.support import FRAMEWORK, require_own, require_supported
from dynaquant_transformers.weights import ADAPTERS, are_live, weights_of

__all__ = ["Session"]

logger = logging.getLogger(__name__)


class Session:
    """The checkpoints of one training, from the one that it goes on from to its last.

    Args:
        trainer: it trains in this process alone or data parallel.
        options: how checkpoints are made.
        eval_batches: how many batches of each evaluation set the search uses; None: all.

    Attributes:
        run: what encodes and commits.
        making: what makes each checkpoint.

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
        self.run = PluginRun(options, framework=FRAMEWORK, report=self._report)
        has_data = trainer.eval_dataset is not None
        self._evaluate = TrainerEvaluation(trainer, eval_batches) if has_data else None
        self._found: tuple[Path | None, Any] = (None, None)  # read to see whether it is whole
        self._shelf = Shelf(trainer)
        self._unmet = False  # whether something was saved since all ranks have found what there is
        self.making = Making(trainer, self.run, self._shelf, raises=options.on_error == "raise")

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

    def save(self, save_natively: Callable[[Any, Any], None], model: Any, trial: Any) -> None:
        """`Making.save`; whatever becomes of it, the ranks meet once more."""
        self._unmet = True
        self.making.save(save_natively, model, trial)

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
        self.making.settle()

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

    # -- parts -------------------------------------------------------------------------------------

    def _try_to_read(self, folder: Path) -> None:
        require_own(folder)
        require_readable(folder)
        self._found = (folder, self.run.load(folder))

    def _agree_on_best(self) -> None:
        """The rank that saves alone knows whether the best checkpoint has come; all load it, or none does."""
        args, state = self.trainer.args, self.trainer.state
        if args.world_size > 1 and args.load_best_model_at_end:
            (state.best_model_checkpoint,) = broadcast_object_list([state.best_model_checkpoint])

    def _report(self, info: CheckpointInfo) -> None:
        """Logs what a checkpoint cost, through the Trainer; subclasses' own logs are left alone."""
        Trainer.log(self.trainer, figures_of(info))
        self._shelf.put()
