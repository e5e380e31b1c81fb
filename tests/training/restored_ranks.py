"""One rank that restores what rank 0 saved; a program of its own, started by `test_restored_ranks`.

``python -m tests.training.restored_ranks STORE RANK RANKS OUT streams``
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import torch
from torch import distributed, nn

import dynaquant_core as dq


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def streams(folder: Path) -> list[object]:
    """What a rank draws after it was restored, and what its log says."""
    said = _Lines()
    logging.getLogger("dynaquant_core").addHandler(said)
    torch.manual_seed(distributed.get_rank())
    model = nn.Linear(4, 4)
    if distributed.get_rank() == 0:
        with dq.Checkpointer(folder, model) as checkpoints:
            checkpoints.save()
    distributed.barrier()
    dq.Checkpointer(folder, model).restore()
    return [torch.rand(2).tolist(), said.lines]


if __name__ == "__main__":
    store, rank, ranks, out = sys.argv[1:5]
    distributed.init_process_group("gloo", init_method=store, rank=int(rank), world_size=int(ranks))
    found = {"streams": streams(Path(out).parent / "run")}
    Path(out).write_text(json.dumps(found), "utf-8")
    distributed.destroy_process_group()
