"""A training process for tests that kill it: ``python -m tests.training.life FOLDER STEPS KILL_AT``.

Prints where it began, and at the end a digest of everything that a run consists of.
"""

import hashlib
import os
import signal
import sys

import torch

from dynaquant_core.training.capture import capture
from dynaquant_core.training.checkpointer import Checkpointer
from dynaquant_core.training.subject import Subject
from tests.training.models import Net, bits, evaluate_net, net_loss, one_step, seed_everything


def main(folder, steps, kill_at):
    seed_everything(int(os.environ.get("SEED", "0")))
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 8])
    with Checkpointer(
        folder,
        model,
        optimizer,
        scheduler=scheduler,
        every=4,
        method=os.environ.get("METHOD"),
        evaluate=evaluate_net,
        exact=("*",),
        moments="exact",
        max_chain=2,
    ) as checkpoints:
        start = checkpoints.restore()
        sys.stdout.write(f"start {start}\n")
        sys.stdout.flush()
        for _ in range(start, steps):
            one_step(model, optimizer, net_loss, scheduler)
            checkpoints.step()
            if checkpoints.completed == kill_at:
                checkpoints.wait()
                os.kill(os.getpid(), signal.SIGKILL)
    tree = capture(Subject(model, optimizer, scheduler), steps)
    sys.stdout.write(f"digest {hashlib.sha256(repr(bits(tree)).encode()).hexdigest()}\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))
