"""One life of a training that is saved: ``python -m tests.memory.life FOLDER STEPS KILL_AT``.

Prints the step it began at and, if it lives to the end, a digest of all that training consists of.
"""

import hashlib
import os
import signal
import sys

import torch

import dynaquant_core as dq
from dynaquant_core.memory import smaq
from tests.memory.nets import mlp, rows, train


def digest(model, optimizer, handle):
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
        for key in ("exp_avg", "exp_avg_sq"):
            found.update(optimizer.state[parameter][key].numpy().tobytes())
    found.update(repr(handle.state_dict()["statistics"]).encode())
    found.update(repr(handle.report()["weight"]).encode())
    return found.hexdigest()


def main(folder, steps, kill_at):
    torch.set_num_threads(1)
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    handle = smaq.apply(model, optimizer, reuse=3, format={"name": "smaq", "statistics": "sample"})
    extra = {"smaq": handle}
    given = {"every": 4, "exact": ("*",), "moments": "exact", "extra": extra}
    with dq.Checkpointer(folder, model, optimizer, **given) as checkpoints:
        start = checkpoints.restore()
        sys.stdout.write(f"start {start}\n")
        sys.stdout.flush()
        for step in range(start, steps):
            if step == kill_at:
                checkpoints.wait()
                os.kill(os.getpid(), signal.SIGKILL)
            train(model, optimizer, rows(step))
            checkpoints.step()
    sys.stdout.write(f"digest {digest(model, optimizer, handle)}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
