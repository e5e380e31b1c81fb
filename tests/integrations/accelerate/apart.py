"""One rank of a data-parallel run: ``python -m tests.integrations.accelerate.apart FOLDER STEPS START``.

Rank 0 prints what the last checkpoint is and a digest of the weights it would restore.  With one word more,
"leave", every rank then prints what it heard of saves that fail.
"""

import json
import sys
from pathlib import Path

import torch

from tests.integrations.accelerate.kit import EPOCH, build, evaluate, everything, resume, train
from tests.integrations.accelerate.leaving import leave
from tests.integrations.killing import digest_of


def main(folder, steps, start, *more):
    torch.set_num_threads(1)
    bench = resume(build(folder, options={"evaluate": evaluate, "every": EPOCH}))
    if bench.done != start:
        raise SystemExit(f"began at {bench.done}, expected {start}")
    train(bench, steps, save_every=EPOCH)
    info = bench.ours.wait()
    bench.accelerator.wait_for_everyone()
    if bench.accelerator.is_main_process:
        sys.stdout.write(f"{info.step} {info.config.scale} {info.kind} {digest_of(everything(bench))}\n")
    if more:
        sys.stdout.write(json.dumps(leave(Path(folder), bench.accelerator.process_index)) + "\n")
        bench.accelerator.wait_for_everyone()
    bench.accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
