"""One rank of a DDP job whose rank 0 saves alone; a program of its own, started by `test_evaluating_ranks`.

``python -m tests.training.evaluating_ranks STORE RANK RANKS OUT ACT``
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import dynaquant_core as dq
from tests.gloo import leave


class Inside(nn.Module):
    """A model that holds one which runs on all ranks."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs)


def trained(folder: Path, act: str) -> tuple[list[list[float]], int]:
    """Weights and running means after some steps, and how often rank 0 measured.

    Under "uneven" the ranks have other numbers of batches, which `Join` allows.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    parallel = DistributedDataParallel(model)
    held, rank, measured = torch.randn(64, 16), distributed.get_rank(), []

    def measure(given: nn.Module) -> float:
        measured.append(1)
        return given(held).square().mean().item()

    given = {"given": parallel, "nested": Inside(parallel), "uneven": parallel}.get(act, model)
    evaluate = measure if given is not model else lambda: measure(parallel)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    saver = None
    if rank == 0 and not act.startswith("without"):
        saver = dq.Checkpointer(folder, given, optimizer, every=2, evaluate=evaluate)
    uneven = act.endswith("uneven")
    with Join([parallel]) if uneven else contextlib.nullcontext():
        for step in range(4 - 2 * rank if uneven else 4):
            torch.manual_seed(2 * step + rank)
            optimizer.zero_grad()
            parallel(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            if saver is not None:
                saver.step()
    if saver is not None:
        saver.close()
    return [tensor.flatten().tolist() for tensor in model.state_dict().values()], len(measured)


if __name__ == "__main__":
    store, number, ranks, out, *acts = sys.argv[1:]
    distributed.init_process_group(
        "gloo",
        init_method=store,
        rank=int(number),
        world_size=int(ranks),
        timeout=dt.timedelta(seconds=30),
    )
    found = {act: trained(Path(out).parent / act, act) for act in acts}
    Path(out).write_text(json.dumps(found), "utf-8")
    leave()
