"""The HF Trainer with DynaQuant on handwritten digits: a training is killed, resumes, and ends as it should.

    python examples/transformers_trainer.py [FOLDER]    # new or empty; without it a temporary one

Three processes train the same GPT-2, which learns to draw digits pixel by pixel: one undisturbed with the
Trainer's own checkpoints, one with DynaQuant that is killed by SIGKILL, and one that goes on from what the
second had committed.
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
from pathlib import Path
from typing import Any

import torch
import transformers
from sklearn.datasets import load_digits
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

STEPS, EVERY, KILL_AT = 80, 20, 50

#: Sixteen grey values and the token that begins an image.
BEGIN, VOCABULARY = 17, 18


class Killed(TrainerCallback):
    """Ends the process shortly after a step, whatever it is doing then."""

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **_: object) -> None:  # noqa: ARG002
        """Sets the alarm."""
        if state.global_step == KILL_AT:
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()


def images(first: int, last: int) -> list[dict[str, torch.Tensor]]:
    """Images as sequences of 64 pixels."""
    pixels = torch.from_numpy(load_digits().data[first:last]).long()
    tokens = torch.cat([torch.full((len(pixels), 1), BEGIN), pixels], dim=1)
    return [{"input_ids": row, "labels": row} for row in tokens]


def train(folder: str, ours: bool, killed: bool) -> None:
    """One life of the training."""
    transformers.logging.set_verbosity_error()
    logging.basicConfig(level=logging.ERROR)
    torch.set_num_threads(1)  # so small a model gains nothing from a second
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=65,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=BEGIN,
        eos_token_id=BEGIN,
    )
    arguments = TrainingArguments(
        folder,
        max_steps=STEPS,
        save_steps=EVERY,
        save_total_limit=2,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=50,
        learning_rate=5e-3,
        use_cpu=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        logging_strategy="no",
        report_to=[],
    )
    callbacks: list[TrainerCallback] = [Killed()] if killed else []
    if ours:
        from dynaquant_transformers import DynaQuantCallback

        callbacks.append(DynaQuantCallback(threshold=0.01))  # the line that is new
    trainer = Trainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=images(0, 1400),
        eval_dataset=images(1400, 1600),
        callbacks=callbacks,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=ours)
    print(f"  steps {trainer._initial_global_step} to {trainer.state.global_step},", end=" ")
    print(f"loss on images not trained on {trainer.evaluate()['eval_loss']:.4f}")


def life(*words: object, ends: int = 0) -> None:
    """Runs one process of this script, which has to end with a status: there is nothing to compare else."""
    command = [sys.executable, __file__, "--life", *map(str, words)]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)  # noqa: S603 - itself
    if done.returncode != ends:
        sys.exit(
            f"{done.stderr}This life ended with status {done.returncode}, expected {ends}; why is said above."
        )


def size(folder: Path) -> int:
    """Bytes on disk, linked files once."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum({file.st_ino: file.st_size for file in files}.values())


def main(folder: Path) -> None:
    """Runs the three lives and compares."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        sys.exit(f"{folder} is not empty, and lives would go on from what is there; give a new folder.")
    started = time.perf_counter()
    print("the Trainer's own checkpoints, undisturbed", flush=True)
    life(folder / "native", 0, 0)
    print("DynaQuant, killed", flush=True)
    life(folder / "ours", 1, 1, ends=-signal.SIGKILL)
    print("  ended with signal 9", flush=True)
    print("DynaQuant, started again", flush=True)
    life(folder / "ours", 1, 0)
    native, ours = size(folder / "native"), size(folder / "ours")
    print(f"two checkpoints on disk: {native:,} bytes native, {ours:,} bytes ours")
    print(f"{time.perf_counter() - started:.0f} seconds")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--life"]:
        train(sys.argv[2], sys.argv[3] == "1", sys.argv[4] == "1")
    elif len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as place:
            main(Path(place))
