"""One rank of a run that is saved, killed, resumed: ``python -m tests.comm.life STORE RANK RANKS OUT ACT``.

ACT is ``RUN-STEPS-KILL_0-KILL_1``: which run goes on, how far, and when each rank is killed (0: not): rank 1
before it saves at that step, rank 0 after the commit.  There may be several acts.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.comm import two_bit
from dynaquant_core.training.capture import capture
from dynaquant_core.training.checkpointer import Checkpointer
from dynaquant_core.training.subject import Subject
from tests.gloo import leave
from tests.training.models import Net, bits, net_loss, one_step, seed_everything

EVERY = 4


def common_step(checkpoints):
    """The newest step that every rank has."""
    newest = checkpoints.store.newest()
    step = torch.tensor(newest.step if newest else 0)
    distributed.all_reduce(step, distributed.ReduceOp.MIN)
    return int(step)


def live(folder, rank, steps, kill_at):
    seed_everything()
    model = DistributedDataParallel(Net(), bucket_cap_mb=1e-3)
    state = two_bit.register(model, threshold={"head": 0.01, "*": 0.02}, warmup=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    extra = {"two_bit": state}
    options = {"every": EVERY, "exact": ("*",), "moments": "exact", "extra": extra}
    with Checkpointer(folder / f"rank{rank}", model, optimizer, **options) as checkpoints:
        step = common_step(checkpoints)
        start = checkpoints.restore(step) if step else 0
        if not start:
            seed_everything(rank)  # batches and dropout of this rank's own
        for _ in range(start, steps):
            one_step(model, optimizer, net_loss)
            last = checkpoints.completed + 1 == kill_at
            if last and rank == 1:
                checkpoints.wait()  # the one before is committed, this one is not begun
                os.kill(os.getpid(), signal.SIGKILL)
            checkpoints.step()
            if last:
                checkpoints.wait()
                os.kill(os.getpid(), signal.SIGKILL)
    tree = capture(Subject(model, optimizer, extra=extra), steps)
    held = sum(
        float(item["residual"].abs().sum()) for item in tree["extra"]["two_bit"]["parameters"].values()
    )
    return {"start": start, "digest": hashlib.sha256(repr(bits(tree)).encode()).hexdigest(), "held": held}


def main():
    """Lives once."""
    store, rank, ranks, out, *acts = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=store, rank=int(rank), world_size=int(ranks))
    found = {}
    for act in acts:
        run, *numbers = act.split("-")
        steps, *kills = map(int, numbers)
        found[act] = live(Path(out).parent / run, int(rank), steps, kills[int(rank)])
    Path(out).write_text(json.dumps(found), encoding="utf-8")
    distributed.barrier()
    leave()


if __name__ == "__main__":
    main()
