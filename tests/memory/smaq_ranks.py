"""One rank of a data-parallel run under SmaQ.

``python -m tests.memory.smaq_ranks STORE RANK RANKS OUT ACT...`` writes what it saw into OUT.
"""

import copy
import hashlib
import json
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.memory import smaq
from tests.gloo import leave
from tests.memory.nets import mlp, rows, train


def digest(model, optimizer):
    found = hashlib.sha256()
    for parameter in model.parameters():
        found.update(parameter.detach().numpy().tobytes())
        for value in optimizer.state[parameter].values():
            found.update(value.numpy().tobytes())
    return found.hexdigest()


def life(rank, which):
    """Six steps on batches of the rank's own; the handle is put on DDP or on the module inside of it."""
    module = mlp(seed=rank)  # the first rank's weights count
    model = DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with smaq.apply(model if which == "ddp" else module, optimizer) as handle:
        losses = [train(model, optimizer, rows(10 * (step % 2) + rank)) for step in range(6)]
        report = handle.report()
    weights = module[0].weight.detach()
    return {
        "digest": digest(module, optimizer),
        "levels": weights.unique().numel(),
        "benefit": report["saved"]["benefit"],
        "roles": sorted(set(report) - {"memory"}),
        "losses": losses,
    }


def restored(rank, which):
    """Steps of a handle that ``one`` rank or ``all`` have loaded, its statistics among it."""
    kept = None
    for _ in range(2):
        model = DistributedDataParallel(mlp())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with smaq.apply(model, optimizer, reuse=1) as handle:
            if kept is not None and (which == "all" or rank == 0):
                handle.load_state_dict(kept)
            try:
                for step in range(3):
                    train(model, optimizer, rows(10 * step + rank))
            except StateMismatchError as error:
                return {"said": str(error), "steps": len(optimizer.state), "digest": None}
            kept = copy.deepcopy(handle.state_dict())
    return {"said": None, "digest": digest(model.module, optimizer)}


def midway(rank, which):
    """After two steps together: ``later``, rank 0 alone loads what it was; or ranks draw from another seed.

    ``seeds``: each from its own, ``seed``: all from one, ``reseeded``: rank 0 alone.
    """
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with smaq.apply(model, optimizer, reuse=1) as handle:
        kept = copy.deepcopy(handle.state_dict())
        for step in range(2):
            train(model, optimizer, rows(10 * step + rank))
        if which == "later" and rank == 0:
            handle.load_state_dict(kept)
        elif which in ("seeds", "seed") or (which == "reseeded" and rank == 0):
            handle.reseed(7 + rank if which == "seeds" else 7)
        before = digest(model.module, optimizer)
        try:
            train(model, optimizer, rows(20 + rank))
        except StateMismatchError as error:
            return {"said": str(error), "untouched": digest(model.module, optimizer) == before}
    return {"said": None, "digest": digest(model.module, optimizer)}


def joined(rank, which):
    """Rank 1 has no batches in the first of two epochs under `join`; weights before its end."""
    model = DistributedDataParallel(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with smaq.apply(model, optimizer) as handle:
        for epoch in range(2):
            handle.reseed(epoch)
            with model.join():
                steps = range(0 if rank and not epoch else 3)
                losses = [train(model, optimizer, rows(10 * step + rank)) for step in steps]
                found = digest(model.module, optimizer)
    return {"steps": len(losses), "digest": found}


def main(store, rank, ranks, out, *acts):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=90)
    )
    plays = {"ddp": life, "module": life, "one": restored, "all": restored, "join": joined}
    plays.update(dict.fromkeys(("later", "seeds", "seed", "reseeded"), midway))
    told = {act: plays[act](rank, act) for act in acts}
    Path(out).write_text(json.dumps(told), encoding="utf-8")
    leave()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
