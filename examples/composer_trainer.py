"""Composer with DynaQuant on handwritten digits: a training is killed, resumes, and ends where it should.

    python examples/composer_trainer.py [FOLDER]    # new or empty; without it a temporary one

Three processes train the same network: one undisturbed with Composer's own checkpoints, one with DynaQuant
that is killed by SIGKILL while it saves, and one that goes on with ``autoresume=True``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from composer import Trainer
from composer.core import Callback
from composer.models import ComposerClassifier
from composer.utils import dist, reproducibility
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dynaquant_composer import DynaQuantCallback

BATCHES, EVERY, KEEP = 200, 20, 3


class KillAt(Callback):
    """Kills the process shortly after a batch began, as a machine that fails would."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def batch_start(self, state: Any, logger: Any) -> None:  # noqa: ARG002 - an event's arguments
        """The moment."""
        if int(state.timestamp.batch) + 1 == self.batch:
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """1,400 images to train on, 397 to measure with."""
    found = load_digits()
    images, labels = torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)
    training = TensorDataset(images[:1400], labels[:1400])
    held_out = TensorDataset(images[1400:], labels[1400:])
    return (
        DataLoader(training, 64, sampler=dist.get_sampler(training, shuffle=True)),
        DataLoader(held_out, 256, sampler=dist.get_sampler(held_out)),
    )


def train(folder: str, ours: bool, kill_at: int) -> None:
    """One life of the training."""
    reproducibility.seed_all(0)
    network = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    model = ComposerClassifier(network, num_classes=10)
    training, held_out = loaders()
    if ours:
        saver = DynaQuantCallback(
            folder, f"{EVERY}ba", threshold=0.01, num_checkpoints_to_keep=KEEP, max_chain=2
        )
        saving: dict[str, Any] = {"callbacks": [saver, KillAt(kill_at)]}
    else:
        interval = f"{EVERY}ba"
        saving = {
            "save_folder": folder,
            "save_interval": interval,
            "save_num_checkpoints_to_keep": KEEP,
        }
    trainer = Trainer(
        model=model,
        train_dataloader=training,
        eval_dataloader=held_out,
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-3),
        max_duration=f"{BATCHES}ba",
        eval_interval=f"{BATCHES}ba",
        autoresume=True,
        run_name="digits",
        seed=0,
        device="cpu",
        progress_bar=False,
        **saving,
    )
    if int(trainer.state.timestamp.batch):
        print(f"  resumed at batch {int(trainer.state.timestamp.batch)}")
    trainer.fit()
    metrics = trainer.state.eval_metrics["eval"]
    print(
        "  held out:", ", ".join(f"{name} {float(metric.compute()):.4f}" for name, metric in metrics.items())
    )
    trainer.close()
    if ours and saver.last is not None:
        info = saver.last
        print(f"  last checkpoint: {info.ratio:.1f} times smaller, {100 * info.degradation:+.2f}% worse")


def life(*words: object, ends: int = 0) -> None:
    """Runs one process of this script, which has to end with a status: there is nothing to compare else."""
    command = [sys.executable, __file__, "--life", *map(str, words)]
    quiet = os.environ | {"PYTHONWARNINGS": "ignore"}
    status = subprocess.run(command, env=quiet, check=False).returncode  # noqa: S603 - this script itself
    if status != ends:
        sys.exit(f"This life ended with status {status}, expected {ends}; why is said above.")


def size(folder: Path) -> int:
    """Bytes on disk, linked files once."""
    files = [path.lstat() for path in folder.rglob("*") if path.is_file()]
    return sum({status.st_ino: status.st_size for status in files}.values())


def main(folder: Path) -> None:
    """Runs the three lives and compares."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        sys.exit(f"{folder} is not empty, and lives would go on from what is there; give a new folder.")
    started = time.perf_counter()
    print("Composer's own checkpoints, undisturbed")
    life(folder / "native", 0, 0)
    print("DynaQuant, killed while it saves")
    life(folder / "ours", 1, 6 * EVERY, ends=-signal.SIGKILL)
    print("  ended with signal 9")
    print("DynaQuant, started again")
    life(folder / "ours", 1, 0)
    native, ours = size(folder / "native"), size(folder / "ours")
    print(f"{KEEP} checkpoints on disk: {native:,} bytes native, {ours:,} bytes ours")
    print(f"{time.perf_counter() - started:.0f} seconds")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--life"]:
        train(sys.argv[2], sys.argv[3] == "1", int(sys.argv[4]))
    elif len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
