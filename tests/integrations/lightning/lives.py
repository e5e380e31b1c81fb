"""A process that forks training processes for tests that kill them: imports are paid for once.

``python -m tests.integrations.lightning.lives`` reads lines ``FOLDER STEPS SAID MODE`` and answers each with
"pid N" and, when that process has ended, "exit CODE".  The process writes to the file SAID where it began,
and at the end a digest of everything that a run consists of.
"""

import hashlib
import os
import sys
import time
import warnings
from pathlib import Path

import torch
from lightning.pytorch import Callback

from dynaquant_lightning import DynaQuantCallback
from tests.integrations.lightning.kit import EXACT, digits, everything, fit, loaders, saves

MODES = {"exact": EXACT, "lossy": {}}


class Batches:
    """Batches in a fixed order that knows where it stands, so that a resumed epoch goes on in its middle."""

    def __init__(self, size=64):
        self._batches = [digits()[0][start : start + size] for start in range(0, 1280, size)]
        self._at = 0

    def __len__(self):
        return len(self._batches)

    def __iter__(self):
        self._at %= len(self)  # Lightning asks for no more than there are, so nothing else is told of the end
        while self._at < len(self):
            self._at += 1
            yield self._batches[self._at - 1]

    def state_dict(self):
        return {"at": self._at}

    def load_state_dict(self, state):
        self._at = state["at"]


class Says(Callback):
    """Writes where training begins, and slows it down so that there is something to hit."""

    def __init__(self, said, pause):
        self.said, self.pause = Path(said), pause

    def on_train_start(self, trainer, pl_module):
        self.said.write_text(f"start {trainer.global_step}\n")

    def on_train_batch_end(self, *_):
        time.sleep(self.pause)


def live(folder, steps, said, mode, pause=0.01):
    """Trains, or goes on, to ``steps``; saves every five.

    The number of the epoch is no part of the digest: Lightning counts one less where a run was resumed
    at the ends of two epochs, from native checkpoints as well.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    keeper = saves(
        folder, every_n_epochs=None, every_n_train_steps=5, save_top_k=2, monitor="step", mode="max"
    )
    data = Batches(), loaders()[1]
    callbacks = (Says(said, pause), keeper, DynaQuantCallback(max_chain=3, **MODES[mode]))
    run = fit(folder, *callbacks, epochs=-1, max_steps=steps, ckpt_path="last", data=data)
    found = {name: value for name, value in everything(run).items() if name != "epoch"}
    return hashlib.sha256(repr(found).encode()).hexdigest()


def main():
    for line in sys.stdin:
        folder, steps, said, mode = line.split()
        process = os.fork()
        if process == 0:
            digest = live(folder, int(steps), said, mode)
            with Path(said).open("a") as file:
                file.write(f"digest {digest}\n")
            os._exit(0)
        print(f"pid {process}", flush=True)  # noqa: T201
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        print(f"exit {code}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
