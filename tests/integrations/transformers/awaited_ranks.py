"""What two ranks find as soon as a checkpoint was saved on a slow disk: part of `ranks`."""

import shutil
from contextlib import nullcontext
from pathlib import Path

from transformers import Trainer, TrainerCallback

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins import is_checkpoint
from dynaquant_core.plugins.line import Line
from dynaquant_transformers import DynaQuantCallback
from tests.full_disk import files_of_at_most
from tests.integrations.transformers.kit import EXACT, names, trainer
from tests.plugins.kit import slow_disk

__all__ = ["find"]

GIVEN = {"ddp_backend": "gloo", "max_steps": 2, "save_steps": 2}


class Looks(TrainerCallback):
    """What this rank finds when it hears of a save."""

    def __init__(self):
        self.found = None

    def on_save(self, args, state, control, **_):
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        self.found = [is_checkpoint(folder), sorted(names(folder)) if folder.is_dir() else []]


class Copies(Trainer):
    """Every rank copies what was saved."""

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        shutil.copytree(folder, Path(self.args.output_dir, f"copy-{self.args.process_index}"))


def find(folder, rank):
    """What this rank finds where both listen, where rank 1 alone does, and where a subclass copies.

    Last what it hears where the disk of the rank that saves is full.
    """
    put = Line.put
    slow_disk(0.7)
    try:
        both, alone, full = Looks(), Looks(), Looks()
        trainer(folder / "both", DynaQuantCallback(**EXACT), both, **GIVEN).train()
        trainer(folder / "alone", DynaQuantCallback(**EXACT), *([alone] if rank else []), **GIVEN).train()
        trainer(folder / "copied", DynaQuantCallback(**EXACT), kind=Copies, **GIVEN).train()
        copied = is_checkpoint(folder / "copied" / f"copy-{rank}")
        with files_of_at_most(60_000) if rank == 0 else nullcontext():
            heard = _heard(trainer(folder / "full", DynaQuantCallback(**EXACT), full, **GIVEN))
    finally:
        Line.put = put
    return {"both": both.found, "alone": alone.found, "copied": copied, "full": [heard, full.found]}


def _heard(one):
    try:
        one.train()
    except DynaQuantError as error:
        return f"{type(error).__name__}: {error}"
    return None
