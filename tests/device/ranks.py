"""One rank of a job whose gradients lie on a device; a program of its own, started by `tests.gloo.play`.

``python -m tests.device.ranks STORE RANK RANKS OUT BACKEND-DEVICE``: the act names backend and device; all
ranks share the first device, which NCCL allows to one rank only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core import comm
from dynaquant_core.memory import samo

STEPS = 6


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 40), nn.Tanh(), nn.Linear(40, 3))


def batch(rank, step, device):
    draw = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(8, 16, generator=draw).to(device)


def two_bit(device):
    """Weights of a training whose gradients go as two bits, and what is held back."""
    model = net().to(device)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1e-3)
    state = comm.register(wrapped, {"compression": "2bit", "threshold": 0.01, "warmup": 1})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        wrapped(batch(distributed.get_rank(), step, device)).square().mean().backward()
        optimizer.step()
    held = torch.cat([state.residual(name).flatten().cpu() for name, _ in model.named_parameters()])
    return {"weights": flat(model), "held": held.tolist()}


def pruned(device):
    """Weights of a SAMO training, whose compressed gradients are averaged."""
    model = net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.float32, group=distributed.group.WORLD)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(distributed.get_rank(), step, device)).square().mean().backward()
        optimizer.step()
    return {"weights": flat(model)}


def flat(model):
    return torch.cat([one.detach().flatten().cpu() for one in model.parameters()]).tolist()


def main(store, rank, ranks, out, act):
    backend, _, device = act.partition("-")
    distributed.init_process_group(backend, init_method=store, rank=int(rank), world_size=int(ranks))
    found = {"two_bit": two_bit(device), "samo": pruned(device)}
    Path(out).write_text(json.dumps({act: found}), "utf-8")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
