"""One rank of a data-parallel run: ``python -m tests.integrations.composer.apart FOLDER BATCHES START``.

Rank 0 prints what the last checkpoint is; every rank prints a digest of its random stream.
"""

import hashlib
import sys

import torch

from tests.integrations.composer.kit import bits, ours, trainer


def main(folder, batches, start):
    torch.set_num_threads(1)
    callback = ours(folder, "3ba")
    run = trainer(callback, duration=f"{batches}ba", autoresume=True)
    if int(run.state.timestamp.batch) != start:
        raise SystemExit(f"began at {run.state.timestamp.batch}, expected {start}")
    run.fit()
    info = callback.last
    said = "-" if info is None else f"{info.step} {info.kind} {info.met} {info.evaluations}"
    parameters = dict(run.state.model.named_parameters())  # buffers are each rank's own under DDP
    weights = hashlib.sha256(repr(bits(parameters)).encode()).hexdigest()
    sys.stdout.write(f"{said} {weights}\n")
    run.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
