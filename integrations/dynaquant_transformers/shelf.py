"""The output folders of one training: what is on its way into them, what gets its name, what goes."""

from __future__ import annotations

import logging
from pathlib import Path

from transformers import Trainer
from transformers.trainer_utils import rotate_checkpoints

from dynaquant_core.plugins.claim import Claim
from dynaquant_transformers.native import told
from dynaquant_transformers.places import MAKING, Place, clear_workshop, finish_leftovers

__all__ = ["Shelf"]

logger = logging.getLogger(__name__)


class Shelf:
    """Puts checkpoints where the Trainer looks for them, once they are whole.

    Args:
        trainer: whose folders; only the process that saves changes them.

    Attributes:
        lost: checkpoints that were on their way and never arrived.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.lost: set[Place] = set()
        self._trainer = trainer
        self._outputs: set[Path] = set()
        self._claims: dict[Path, Claim] = {}  # of output folders: nobody else makes any there
        self._coming: Place | None = None  # on its way to the disk
        self._best: str | None = None  # what the Trainer called the best one before that was begun
        self._base: Place | None = None  # what the next one builds on
        self._known: set[Path] = set()  # what lay where that was made as it got its name
        self._replaces = False  # whether something of its name was there before the one that is being made

    def open(self, output: Path) -> None:
        """Clears away what an earlier process left in an output folder; all ranks together.

        Raises:
            StoreLockedError: another process is making checkpoints there.
            StorageError: the system refused.
        """
        if output not in self._outputs:
            if self._trainer.args.should_save and (output / MAKING).exists():
                self._claim(output)
                with told("finish the checkpoints in", output):
                    finish_leftovers(output)
            self._outputs.add(output)
        self._trainer.accelerator.wait_for_everyone()

    def begin(self, place: Place) -> None:
        """Makes room for a checkpoint, before a best one is named; all ranks together; raises as `open`."""
        self.open(place.output)
        self._best = self._trainer.state.best_model_checkpoint
        if self._trainer.args.should_save:
            self._claim(place.output)
            place.clear()
            self._replaces = place.final.exists()
            with told("make", place.workshop):
                place.workshop.mkdir(parents=True, exist_ok=True)
        self._trainer.accelerator.wait_for_everyone()

    def take_early(self, place: Place) -> None:
        """Makes the checkpoint of the folder that a subclass has begun under its name; all ranks together.

        In one that was there before, what is older is not told from what is new: `Place.publish` takes that.

        Raises:
            StorageError: the system refused.
        """
        self._trainer.accelerator.wait_for_everyone()  # each rank has put its own there
        if self._trainer.args.should_save:
            with told("make", place.making):
                if place.final.is_dir() and not self._replaces:
                    place.final.rename(place.making)
                place.making.mkdir(parents=True, exist_ok=True)

    def bring_out(self, place: Place) -> None:
        """Puts into the output folder what was put beside where a checkpoint is made; all ranks together.

        Raises:
            StorageError: the system refused.
        """
        self._trainer.accelerator.wait_for_everyone()
        if self._trainer.args.should_save:
            with told("put files into", place.output):
                place.bring_out()

    def drop(self, place: Place) -> None:
        """Takes back the room of a checkpoint that is not to be; all ranks together."""
        self._trainer.accelerator.wait_for_everyone()  # none still looks whether it is there
        if self._trainer.args.should_save:
            place.clear()

    def expect(self, place: Place) -> None:
        """Tells that a checkpoint is on its way to the disk."""
        self._coming = place

    def put(self) -> None:
        """Gives what has arrived its name; then the Trainer's limit of checkpoints holds again.

        To be called when nothing is on its way any more: what is not whole then never will be.

        Raises:
            StorageError: the system refused; the checkpoint waits for its name.
        """
        place = self._coming
        if place is None:
            return
        with told("give its name to", place.final):
            whole = place.publish()
        self._coming = None
        if not whole:
            place.clear()
            self.lost.add(place)
            self._forget_best(place)
            return
        self.lost.discard(place)
        if self._base is not None and self._base != place:
            self._base.clear()
        self._base, self._known = place, place.files()
        best = self._trainer.state.best_model_checkpoint
        rotate_checkpoints(
            output_dir=str(place.output),
            save_total_limit=self._trainer.args.save_total_limit,
            best_model_checkpoint=None if best is None else str(place.output / Path(best).name),
            use_mtime=True,
        )

    def take_late(self, place: Place) -> None:
        """Takes along what came to where the newest one was made after it had its name; all ranks together.

        Raises:
            StorageError: the system refused.
        """
        self._trainer.accelerator.wait_for_everyone()
        if self._trainer.args.should_save:
            with told("put files into", place.final):
                place.take_late(self._known)

    def _forget_best(self, place: Place) -> None:
        """A checkpoint that never came is not the best one: that is the one before, if it is there."""
        state = self._trainer.state
        if state.best_model_checkpoint is None or Path(state.best_model_checkpoint).name != place.final.name:
            return
        there = self._best is not None and Path(self._best).is_dir()
        state.best_model_checkpoint = self._best if there else None
        logger.warning(
            "the best model, of step %d, has no checkpoint; the best that has one is %s",
            place.step,
            state.best_model_checkpoint or "none",
        )

    def close(self) -> None:
        """Puts what has arrived, and removes the folders of what was being made."""
        try:
            self.put()
            for output in self._claims:
                clear_workshop(output)
        finally:
            while self._claims:
                self._claims.popitem()[1].release()

    def _claim(self, output: Path) -> None:
        if output not in self._claims:
            self._claims[output] = Claim(output / MAKING)
