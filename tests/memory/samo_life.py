"""A training process under SAMO for tests that kill it.

``python -m tests.memory.samo_life FOLDER STEPS KILL_AT DTYPE PRUNER`` prints where it began, and at the end
a digest
of everything that a run consists of.  Each life has another seed, so only the checkpoint can make them agree.
"""

import hashlib
import os
import signal
import sys

import torch

from dynaquant_core.memory import samo
from dynaquant_core.training.capture import capture
from dynaquant_core.training.checkpointer import Checkpointer
from dynaquant_core.training.subject import Subject
from tests.memory.samo_nets import gpt, loss_of
from tests.training.models import EXACT, bits, seed_everything


def main(folder, steps, kill_at, dtype, pruner):
    seed = int(os.environ.get("SEED", "0"))
    model = gpt(seed)
    seed_everything(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 8])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=5)
    bird = samo.EarlyBird(window=2, distance=0.3) if pruner == "early_bird" else "magnitude"
    handle = samo.wrap(model, optimizer, sparsity=0.8, dtype=getattr(torch, dtype), pruner=bird)
    others = {"scheduler": scheduler, "scaler": scaler}
    with Checkpointer(folder, model, optimizer, every=4, **others, **EXACT) as saving:
        start = saving.restore()
        sys.stdout.write(f"start {start}\n")
        sys.stdout.flush()
        for step in range(start, steps):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step)).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            if pruner == "early_bird" and step % 3 == 2 and handle.end_epoch():
                sys.stdout.write(f"drawn {step}\n")
                sys.stdout.flush()
            saving.step()
            if saving.completed == kill_at:
                saving.wait()
                os.kill(os.getpid(), signal.SIGKILL)
    tree = capture(Subject(model, optimizer, scheduler, scaler), steps)
    digest = hashlib.sha256(repr(bits(tree)).encode()).hexdigest()
    sys.stdout.write(f"digest {digest}\n")
    sys.stdout.write(f"sparsity {handle.sparsity}\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:])
