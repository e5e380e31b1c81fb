"""One rank of a data-parallel run: ``python -m tests.integrations.accelerate.apart FOLDER STEPS START``.

Rank 0 prints what the last checkpoint is and a digest of the weights it would restore.  One word more may
follow: with "back" all ranks load the checkpoint as soon as they have saved it, before it is written; with
"leave" every rank then prints what it heard of searches that fail.  With "refuse" there is no such run, and
every rank prints what it heard of writing that fails.
"""

import json
import os
import sys
from pathlib import Path

import torch

from tests.integrations.accelerate.kit import EPOCH, build, evaluate, everything, resume, train
from tests.integrations.accelerate.leaving import leave, refuse
from tests.integrations.killing import digest_of
from tests.plugins.kit import slow_disk


def main(folder, steps, start, *more):
    torch.set_num_threads(1)
    if "refuse" in more:
        sys.stdout.write(json.dumps(refuse(Path(folder), int(os.environ["RANK"]))) + "\n")
        return
    bench = resume(build(folder, options={"evaluate": evaluate, "every": EPOCH}))
    if bench.done != start:
        raise SystemExit(f"began at {bench.done}, expected {start}")
    if "back" in more:
        slow_disk(0.7)
    train(bench, steps, save_every=EPOCH)
    if "back" in more:
        bench.accelerator.load_state(str(Path(folder, "checkpoints", "checkpoint_0")))
    info = bench.ours.wait()
    bench.accelerator.wait_for_everyone()
    if bench.accelerator.is_main_process:
        sys.stdout.write(f"{info.step} {info.config.scale} {info.kind} {digest_of(everything(bench))}\n")
    if "leave" in more:
        sys.stdout.write(json.dumps(leave(Path(folder), bench.accelerator.process_index)) + "\n")
        bench.accelerator.wait_for_everyone()
    bench.accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
