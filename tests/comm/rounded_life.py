"""One rank of a run with a checkpoint a rank that rounds.

``python -m tests.comm.rounded_life STORE RANK RANKS OUT ACT...``; ACT is ``together`` (docs/two-bit.md, as it
is), ``apart`` (without the line that gives all ranks the first one's weights) or ``moments`` (that line for
the model alone, and moments that the ranks store in other ways).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import dynaquant_core as dq
from dynaquant_core.comm import two_bit
from dynaquant_core.errors import StateMismatchError
from tests.gloo import leave

STEPS = 8
TRUE = torch.randn(16, 4, generator=torch.Generator().manual_seed(99))


def batch(number, rank):
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(10 * number + rank))
    return x, (x @ TRUE).tanh()


def loss_of(model, number):
    x, y = batch(number, distributed.get_rank())
    return (model(x) - y).square().mean()


def apart(model, optimizer):
    """How far the ranks' weights and moments are apart, at most."""
    moments = [one for held in optimizer.state.values() for one in held.values()]
    worst = 0.0
    for tensor in (*model.parameters(), *moments):
        everybodys = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
        distributed.all_gather(everybodys, tensor.detach().contiguous())
        worst = max(worst, *(float((one - everybodys[0]).abs().max()) for one in everybodys))
    return worst


def live(folder, act, seed):
    """A life of `STEPS` steps; how far the ranks are apart when it begins and when it ends."""
    torch.manual_seed(seed)
    layers = nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)
    model = DistributedDataParallel(nn.Sequential(*layers))
    state = two_bit.register(model, threshold=1e-3, warmup=5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with dq.Checkpointer(
        folder / f"rank{distributed.get_rank()}",
        model,
        optimizer,
        every=4,
        moments="exact" if act == "moments" and distributed.get_rank() else "8bit",
        evaluate=lambda model: loss_of(model, 10**6),  # on data of the rank's own
        extra={"two_bit": state},
    ) as checkpoints:
        newest = checkpoints.store.newest()
        step = torch.tensor(newest.step if newest else 0)
        distributed.all_reduce(step, distributed.ReduceOp.MIN)
        start = checkpoints.restore(int(step)) if step else 0
        if act != "apart":
            two_bit.from_first_rank(model, *([optimizer] if act == "together" else []))
        found = {"start": start, "apart": [apart(model, optimizer)]}
        residual = torch.cat([state.residual(name).flatten() for name, _ in model.module.named_parameters()])
        found["held"] = float(residual.abs().sum())
        try:
            for number in range(start, start + STEPS):
                optimizer.zero_grad()
                loss_of(model, number).backward()
                optimizer.step()
                checkpoints.step()
        except StateMismatchError as error:
            found["refused"] = [state.step - start, str(error)]
        found["apart"].append(apart(model, optimizer))
    return found


def main():
    """Lives twice for each act."""
    store, rank, ranks, out, *acts = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=store, rank=int(rank), world_size=int(ranks))
    found = {act: [live(Path(out).parent / act, act, seed) for seed in range(2)] for act in acts}
    Path(out).write_text(json.dumps(found), encoding="utf-8")
    distributed.barrier()
    leave()


if __name__ == "__main__":
    main()
