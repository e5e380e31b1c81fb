"""A training fed by a loader's workers, all of whose group get SIGUSR1 at the third step.

python -m tests.training.loader_life FOLDER

It prints what a save was requested by.  Torch raises of dead workers whenever the next signal of a child
arrives, which may be after the block: hence a process of its own.
"""

import multiprocessing
import os
import signal
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

import dynaquant_core as dq
from tests.training.models import EXACT, build, net_loss, one_step


class Drawn(Dataset):
    """What the workers draw."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return torch.full((16,), float(index))


def main(folder: str) -> None:
    model, optimizer = build()
    checkpoints = dq.Checkpointer(folder, model, optimizer, every=10**6, save_on="SIGUSR1", **EXACT)
    try:
        with checkpoints:
            for _ in DataLoader(Drawn(), 8, num_workers=2):
                one_step(model, optimizer, net_loss)
                if checkpoints.completed == 3:
                    os.kill(os.getpid(), signal.SIGUSR1)
                    for worker in multiprocessing.active_children():
                        os.kill(worker.pid, signal.SIGUSR1)
                    time.sleep(20)  # torch raises in it
                checkpoints.step()
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises at every child that it hears of
        sys.stdout.write(f"{checkpoints.requested_by}\n")


if __name__ == "__main__":
    main(sys.argv[1])
