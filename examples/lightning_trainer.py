"""Lightning with DynaQuant on handwritten digits: a training is killed, resumes, and ends where it should.

    python examples/lightning_trainer.py [FOLDER]    # new or empty; without it a temporary one

Three processes train the same network: one undisturbed with Lightning's own checkpoints, one with DynaQuant
that is killed by SIGKILL, and one that goes on from what the second had committed.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, KILL_AT = 6, 80


class Digits(LightningModule):
    """A network of 85,000 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """The loss."""
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor]) -> None:
        """Logs the loss; DynaQuant measures candidates with it."""
        self.log("val_loss", functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, whose moments are two thirds of a checkpoint."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Killed(Callback):
    """Ends the process shortly after a step, whatever it is doing then."""

    def on_train_batch_start(self, trainer: Trainer, *_: object) -> None:
        """Sets the alarm."""
        if trainer.global_step == KILL_AT:
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()


def loaders() -> tuple[DataLoader[tuple[Tensor, ...]], DataLoader[tuple[Tensor, ...]]]:
    """1,400 images to train on, 397 to measure with."""
    found = load_digits()
    images, labels = torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)
    training = TensorDataset(images[:1400], labels[:1400])
    return DataLoader(training, 64), DataLoader(TensorDataset(images[1400:], labels[1400:]), 128)


def train(folder: str, ours: bool, killed: bool) -> None:
    """One life of the training."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seed_everything(0, verbose=False)
    callbacks: list[Callback] = [ModelCheckpoint(folder, monitor="val_loss", save_top_k=2, save_last=True)]
    if ours:
        from dynaquant_lightning import DynaQuantCallback

        callbacks.append(DynaQuantCallback(threshold=0.01, max_chain=3))  # the line that is new
    if killed:
        callbacks.append(Killed())
    trainer = Trainer(
        max_epochs=EPOCHS,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = Path(folder) / "last.ckpt"
    print(f"  {'goes on from ' + last.name if last.exists() else 'begins'}", flush=True)
    trainer.fit(Digits(), *loaders(), ckpt_path="last" if last.exists() else None)
    print(f"  step {trainer.global_step}, validation loss {float(trainer.callback_metrics['val_loss']):.4f}")
    if ours:
        best = Digits.load_from_checkpoint(callbacks[0].best_model_path)  # a folder; all else is as ever
        print(f"  the best checkpoint holds {sum(p.numel() for p in best.parameters()):,} weights")


def life(*words: object, ends: int = 0) -> None:
    """Runs one process of this script, which has to end with a status: there is nothing to compare else."""
    command = [sys.executable, __file__, "--life", *map(str, words)]
    status = subprocess.run(command, check=False).returncode  # noqa: S603 - this script itself
    if status != ends:
        sys.exit(f"This life ended with status {status}, expected {ends}; why is said above.")


def size(folder: Path) -> int:
    """Bytes on disk, linked files once."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({file.st_ino: file.st_size for file in files}.values())


def main(folder: Path) -> None:
    """Runs the three lives and compares."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        sys.exit(f"{folder} is not empty, and lives would go on from what is there; give a new folder.")
    started = time.perf_counter()
    print("Lightning's own checkpoints, undisturbed", flush=True)
    life(folder / "native", 0, 0)
    print("DynaQuant, killed", flush=True)
    life(folder / "ours", 1, 1, ends=-signal.SIGKILL)
    print("  ended with signal 9", flush=True)
    print("DynaQuant, started again", flush=True)
    life(folder / "ours", 1, 0)
    native, ours = size(folder / "native"), size(folder / "ours")
    print(f"the best two and the last on disk: {native:,} bytes native, {ours:,} bytes ours")
    print(f"{time.perf_counter() - started:.0f} seconds")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--life"]:
        train(sys.argv[2], sys.argv[3] == "1", sys.argv[4] == "1")
    elif len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as place:
            main(Path(place))
