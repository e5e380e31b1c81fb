"""Two ranks on the CPU: ``python -m tests.integrations.lightning.pair FOLDER`` prints what came of it.

A process of its own, because ranks are forked from it, which wants a process without threads.
"""

import hashlib
import json
import os
import sys
import time
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.core import saving
from torchmetrics import Accuracy

from dynaquant_core.errors import DynaQuantError
from dynaquant_core.plugins import describe, find_checkpoints, is_checkpoint
from dynaquant_core.plugins.line import Line
from dynaquant_lightning import DynaQuantCallback
from tests.integrations.lightning.kit import EXACT, Digits, bits, fit
from tests.plugins.kit import slow_disk

PUT = Line.put


class Accurate(Digits):
    """Logs a metric object, which would gather over ranks by itself."""

    def __init__(self):
        super().__init__()
        self.accuracy = Accuracy(task="multiclass", num_classes=10)

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.accuracy(self(batch[0]), batch[1])
        self.log("val_acc", self.accuracy)


class Looks(Callback):
    """On the second rank, notes in a file what of two checkpoints is there when training has ended."""

    def __init__(self, file, best, last):
        self.file, self.best, self.last = file, best, last

    def on_train_end(self, trainer, *_):
        self.note(trainer, self.best.best_model_path)

    def on_fit_end(self, trainer, *_):
        self.note(trainer, self.best.best_model_path)
        self.note(trainer, self.last.last_model_path)

    def note(self, trainer, path):
        if trainer.global_rank == 1:
            with self.file.open("a") as file:
                print(Path(path).name, is_checkpoint(path), file=file)


class Reads(Callback):
    """Notes in a file of each rank which step it reads of a checkpoint before the batch after its save."""

    def __init__(self, folder, keeper):
        self.folder, self.keeper = folder, keeper

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step in {3, 6}:
            step = saving.pl_load(self.keeper.best_model_path)["global_step"]
            Digits.load_from_checkpoint(self.keeper.best_model_path)
            with (self.folder / f"read-{trainer.global_rank}").open("a") as file:
                print(step, file=file)


class Keeps(ModelCheckpoint):
    """Notes in a file of each rank what a save raised.

    A rank that ends ends the other, which shall have its say.
    """

    def _save_checkpoint(self, trainer, filepath):
        try:
            super()._save_checkpoint(trainer, filepath)
        except DynaQuantError as error:
            folder, end = Path(self.dirpath).parent, time.monotonic() + 10
            (folder / f"raised-{trainer.global_rank}").write_text(type(error).__name__)
            while len(list(folder.glob("raised-*"))) < 2 and time.monotonic() < end:
                time.sleep(0.05)
            raise


class Full(Callback):
    """From the second save on the disk of the rank that writes is full; all ranks hear of it at the third."""

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 4:
            Line.put = lambda self, what, job, *ended: PUT(self, what, full, *ended)


def full():
    raise OSError(28, "No space left on device")


def fails_on_the_second(model):
    """A measure that one rank cannot take."""
    if model.global_rank == 1:
        raise ValueError("the second rank has had enough")
    return 1.0


def train(folder, *callbacks, epochs=2, ckpt_path=None, model=Digits):
    keeper = ModelCheckpoint(folder, monitor="val_loss", save_top_k=2, save_last=True)
    ranks = {"devices": 2, "strategy": "ddp_fork"}
    run = fit(folder, keeper, *callbacks, model=model, epochs=epochs, ckpt_path=ckpt_path, **ranks)
    return hashlib.sha256(repr(bits(run.lightning_module.state_dict())).encode()).hexdigest()


def found_by_the_second(folder):
    """What the second rank finds after a fit on a slow disk; one checkpoint is made at its very end."""
    best = ModelCheckpoint(folder / "best", filename="best")
    last = ModelCheckpoint(folder / "last", every_n_epochs=9, save_last=True)
    looks = Looks(folder / "found", best, last)
    folder.mkdir()
    fit(folder, best, last, DynaQuantCallback(**EXACT), looks, epochs=1, devices=2, strategy="ddp_fork")
    return looks.file.read_text().split()


def read_by_all(folder, *callbacks):
    """What each rank read in mid-training, from a name used again; or raised, where something fails."""
    keeper = Keeps(folder / "kept", filename="best", every_n_train_steps=3, enable_version_counter=False)
    folder.mkdir()
    ours = keeper, DynaQuantCallback(**EXACT), *(callbacks or [Reads(folder, keeper)])
    try:
        fit(folder, *ours, epochs=1, devices=2, strategy="ddp_fork")
    except torch.multiprocessing.ProcessRaisedException:
        return {path.name: path.read_text() for path in folder.glob("raised-*")}
    return {path.name: path.read_text().split() for path in folder.glob("read-*")}


def main(folder):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    plain = train(folder / "plain", epochs=4)
    said = {"same": train(folder / "ours", DynaQuantCallback(), epochs=4) == plain}
    said["names"] = sorted(path.name for path in find_checkpoints(folder / "ours"))
    info = describe(folder / "ours" / "last.ckpt")
    said |= {"met": info.met, "evaluations": info.evaluations, "kind": info.kind, "step": info.step}
    train(folder / "exact", DynaQuantCallback(**EXACT))
    said["resumed"] = train(folder / "exact", DynaQuantCallback(**EXACT), epochs=4, ckpt_path="last") == plain
    train(folder / "named", DynaQuantCallback(evaluate="val_acc", mode="max", threshold=0.02), model=Accurate)
    said["named"] = describe(folder / "named" / "last.ckpt").met
    slow_disk(0.7)
    said["found"] = found_by_the_second(folder / "found")
    said["read"] = read_by_all(folder / "read")
    said["full"] = read_by_all(folder / "full", Full())
    os.environ["DYNAQUANT_DEADLINE"] = "20"
    try:
        train(folder / "fails", DynaQuantCallback(evaluate=fails_on_the_second))
    except torch.multiprocessing.ProcessRaisedException as error:
        said["failure"] = str(error)
    print(json.dumps(said))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
