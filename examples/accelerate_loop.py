"""Accelerate with DynaQuant on handwritten digits: a training is killed, resumes, and ends where it should.

    python examples/accelerate_loop.py [FOLDER]    # new or empty; without it a temporary one

Three processes train the same network: one undisturbed with Accelerate's own checkpoints, one with DynaQuant
that is killed by SIGKILL in the middle of a save, and one that goes on from what the second had committed.
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

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

STEPS, EVERY = 200, 20


def data() -> tuple[TensorDataset, TensorDataset]:
    """1,400 images to train on, 397 to measure with."""
    found = load_digits()
    images, labels = torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)
    return TensorDataset(images[:1400], labels[:1400]), TensorDataset(images[1400:], labels[1400:])


def train(folder: str, ours: bool, kill_at: int) -> None:
    """One life of the training."""
    set_seed(0)
    training, held_out = data()

    def evaluate(model: nn.Module) -> torch.Tensor:
        images, labels = held_out.tensors
        return functional.cross_entropy(model(images), labels, reduction="none")

    project = ProjectConfiguration(folder, automatic_checkpoint_naming=True, total_limit=3)
    accelerator = Accelerator(cpu=True, project_config=project)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(training, 64, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    done = 0
    if ours:
        from dynaquant_accelerate import install

        checkpoints = install(accelerator, evaluate=evaluate, threshold=0.01, every=EVERY, max_chain=2)
        if checkpoints.newest():
            accelerator.load_state()
            done = checkpoints.step
            print(f"  resumed at step {done}")

    while done < STEPS:
        for images, labels in loader:
            accelerator.backward(functional.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == kill_at:
                threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()
            if done % EVERY == 0:
                accelerator.save_state()
            if done == STEPS:
                break
    accelerator.end_training()
    with torch.no_grad():
        print(f"  held-out loss {float(evaluate(accelerator.unwrap_model(model)).mean()):.4f}")
    if ours and checkpoints.last is not None:
        info = checkpoints.last
        print(f"  last checkpoint: {info.ratio:.1f} times smaller, {100 * info.degradation:+.2f}% worse")


def life(*words: object, ends: int = 0) -> None:
    """Runs one process of this script, which has to end with a status: there is nothing to compare else."""
    command = [sys.executable, __file__, "--life", *map(str, words)]
    quiet = os.environ | {"ACCELERATE_LOG_LEVEL": "ERROR"}
    status = subprocess.run(command, env=quiet, check=False).returncode  # noqa: S603 - this script itself
    if status != ends:
        sys.exit(f"This life ended with status {status}, expected {ends}; why is said above.")


def size(folder: Path) -> int:
    """Bytes on disk, linked files once."""
    return sum(
        {path.stat().st_ino: path.stat().st_size for path in folder.rglob("*") if path.is_file()}.values()
    )


def main(folder: Path) -> None:
    """Runs the three lives and compares."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        sys.exit(f"{folder} is not empty, and lives would go on from what is there; give a new folder.")
    started = time.perf_counter()
    print("Accelerate's own checkpoints, undisturbed")
    life(folder / "native", 0, 0)
    print("DynaQuant, killed while it saves")
    life(folder / "ours", 1, 6 * EVERY, ends=-signal.SIGKILL)
    print("  ended with signal 9")
    print("DynaQuant, started again")
    life(folder / "ours", 1, 0)
    native, ours = size(folder / "native"), size(folder / "ours")
    print(f"three checkpoints on disk: {native:,} bytes native, {ours:,} bytes ours")
    print(f"{time.perf_counter() - started:.0f} seconds")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--life"]:
        train(sys.argv[2], sys.argv[3] == "1", int(sys.argv[4]))
    elif len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
