"""One rank that restores what rank 0 saved; a program of its own, started by `test_restored_ranks`.

``python -m tests.training.restored_ranks STORE RANK RANKS OUT ACT...``
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

import dynaquant_core as dq
from tests.gloo import leave


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def streams(folder: Path, *, alone: bool = False) -> list[object]:
    """What a rank draws after it was restored, and what its log says."""
    said = _Lines()
    logging.getLogger("dynaquant_core").addHandler(said)
    torch.manual_seed(distributed.get_rank())
    model = nn.Linear(4, 4)
    if alone or distributed.get_rank() == 0:
        with dq.Checkpointer(folder, model) as checkpoints:
            checkpoints.save()
    distributed.barrier()
    dq.Checkpointer(folder, model).restore()
    return [torch.rand(2).tolist(), said.lines]


def own(folder: Path) -> list[object]:
    """The same of a rank that has a folder of its own."""
    return streams(folder / str(distributed.get_rank()), alone=True)


def apart(folder: Path) -> list[object]:
    """The steps that ranks restore where a disk does not answer one, and weights once all have the same."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(rank)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if rank == 0:
        with dq.Checkpointer(folder, model, optimizer, every=1, exact="*") as checkpoints:
            for _ in range(3):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                checkpoints.step()
    distributed.barrier()
    real = os.open

    def refusing(path: Any, *rest: Any, **more: Any) -> int:
        if rank == 1 and "step-000000003" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *rest, **more)

    os.open = refusing
    checkpoints = dq.Checkpointer(folder, model, optimizer)
    starts = [0] * ranks
    distributed.all_gather_object(starts, checkpoints.restore())
    again = checkpoints.restore(min(starts))
    return [starts, again, model.weight.tolist()]


ACTS = {"streams": streams, "own": own, "apart": apart}

if __name__ == "__main__":
    store, rank, ranks, out, *acts = sys.argv[1:]
    distributed.init_process_group("gloo", init_method=store, rank=int(rank), world_size=int(ranks))
    found = {act: ACTS[act](Path(out).parent / act) for act in acts}
    Path(out).write_text(json.dumps(found), "utf-8")
    leave()
