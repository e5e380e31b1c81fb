"""One rank of a data-parallel run under SAMO: ``python -m tests.memory.samo_ranks STORE RANK RANKS``, prints
JSON."""

import json
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dynaquant_core.errors import ConfigError
from dynaquant_core.memory import samo
from tests.gloo import leave
from tests.memory.gathered import both, counted
from tests.memory.samo_nets import OPTIMIZERS, DenseMasked, conv, gpt, loss_of, twin
from tests.triton_here import why_not


class Branches(nn.Module):
    """Three layers of which a call uses some."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x, used):
        return sum(self.layers[at](x).square().mean() for at in used)


class Counted:
    """Bytes handed to all_reduce."""

    def __init__(self):
        self.bytes, self._true = 0, dist.all_reduce

    def __enter__(self):
        def counting(tensor, *args, **kwargs):
            self.bytes += tensor.numel() * tensor.element_size()
            return self._true(tensor, *args, **kwargs)

        dist.all_reduce = counting
        return self

    def __exit__(self, *_):
        dist.all_reduce = self._true


def against_ddp(build, rank):
    """Bit for bit what dense masked training under DDP gives, accumulation without a reduction included."""
    model = build(rank)  # other weights on each rank: the first one's count
    other = twin(model)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.8, dtype=torch.float32)
    parallel = DistributedDataParallel(other, broadcast_buffers=False, gradient_as_bucket_view=True)
    dense = DenseMasked(other, OPTIMIZERS["adamw"], handle.masks())
    for step in range(6):
        for part in range(2):
            seed = 100 * step + 10 * part + rank
            if part == 0 and step % 2:
                with handle.no_sync():
                    loss_of(model, seed).backward()
                with parallel.no_sync():
                    loss = loss_of_parallel(parallel, other, seed)
                    loss.backward()
            else:
                loss_of(model, seed).backward()
                loss_of_parallel(parallel, other, seed).backward()
        optimizer.step()
        dense.step()
        optimizer.zero_grad()
        dense.optimizer.zero_grad()
    mine, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


def loss_of_parallel(parallel, module, seed):
    """`loss_of` through DDP's forward, which its reducer has to see."""
    if hasattr(module, "wte"):
        parallel.wte = module.wte
    return loss_of(parallel, seed)


def in_half(rank):
    """Ranks stay together, learn, and hand in the compressed bytes only."""
    model = gpt(rank)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.9, loss_scale=64.0)
    losses = []
    with Counted() as counted:
        for step in range(20):
            optimizer.zero_grad()
            loss = loss_of(model, 2 * (step % 3) + rank)
            handle.scale(loss).backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    kept = sum(one.numel() for one in handle.parameters())
    weights = torch.cat([one.detach().flatten().float() for one in model.parameters()])
    low, high = weights.clone(), weights.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    together = torch.equal(low, high)
    return {"together": together, "fell": losses[-1] < losses[0], "share": counted.bytes / 20 / (2 * kept)}


def with_unused_layers(rank):
    """Layer 0 serves both ranks, layer 1 the second only, layer 2 nobody."""
    torch.manual_seed(0)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=torch.float32)
    model(torch.ones(2, 8), (0, 1) if rank else (0,)).backward()
    slots = {slot.name: slot.master.grad for slot in handle.engine.slots}
    sums = [
        None if slots[f"layers.{at}.weight"] is None else float(slots[f"layers.{at}.weight"].sum())
        for at in range(3)
    ]
    optimizer.step()
    return sums


def accumulated(rank):
    """How many layers each launch compressed in passes without a reduction, and whether the ends are equal.

    None where Triton cannot interpret the kernels.
    """
    if why_not() is not None:
        return None
    with pytest.MonkeyPatch.context() as patch:
        launches = counted(patch)

        def life():
            torch.manual_seed(0)
            narrow = [layer for _ in range(4) for layer in (nn.Linear(64, 4), nn.Linear(4, 64))]
            model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), *narrow)
            x = torch.randn(4, 64, generator=torch.Generator().manual_seed(rank))
            optimizer = OPTIMIZERS["adamw"](model.parameters())
            handle = samo.wrap(model, optimizer, sparsity=0.6, dtype=torch.float32)
            for step in range(2):
                with handle.no_sync():
                    model(x + step).square().mean().backward()
                model(x - step).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            return list(model.parameters())

        one, other = both(patch, life)
    return launches, all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def with_different_masks(rank):
    model = nn.Linear(4, 4)
    before = model.weight.detach().clone()
    mask = torch.arange(16).view(4, 4) % 2 == rank
    try:
        samo.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), {"weight": mask})
    except ConfigError as error:
        return str(error) if torch.equal(model.weight, before) else "changed"
    return ""


def with_different_settings(rank):
    """What each difference is refused as, on this rank."""
    told = {}
    for name, of_rank in {
        "sparsity": {"sparsity": (0.5, 0.51)[rank]},
        "dense": {"dense": ("0", ())[rank]},
        "scope": {"scope": ("layer", "global")[rank]},
        "loss_scale": {"loss_scale": (None, 64.0)[rank]},
        "dtype": {"dtype": (torch.float16, torch.bfloat16)[rank]},
        "pruner": {"pruner": ("magnitude", "early_bird")[rank]},
        "models or optimizers": {},
        "waiting gradients": {},
        "hold gradients": {},
    }.items():
        torch.manual_seed(0)
        width = 6 + rank if name == "models or optimizers" else 6
        model = nn.Sequential(nn.Linear(8, width), nn.Linear(width, 4))
        if name == "hold gradients" or (name == "waiting gradients" and rank):
            model(torch.ones(2, 8)).sum().backward()
        before = model[0].weight.detach().clone()
        try:
            samo.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), **of_rank)
        except ConfigError as error:
            untouched = model[0].weight.dtype == torch.float32 and torch.equal(model[0].weight, before)
            told[name] = str(error) if untouched else "changed"
    return told


def wrapped_in_ddp():
    parallel = DistributedDataParallel(nn.Linear(4, 4))
    try:
        samo.wrap(parallel, torch.optim.SGD(parallel.parameters(), lr=0.1))
    except ConfigError as error:
        return str(error)
    return ""


def with_a_mistake_on_one_rank(rank):
    """What either rank is told where one alone was given what cannot be wrapped."""
    told = {}
    for name, of_rank in {
        "sparsity": {"sparsity": (0.5, 1.5)[rank]},
        "mask": {"mask": (None, {"nobody": torch.ones(4, 4, dtype=torch.bool)})[rank]},
        "model": {},
    }.items():
        model = nn.Linear(4, 4)
        before = model.weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        given = "no model" if name == "model" and rank else model
        try:
            samo.wrap(given, optimizer, **of_rank)
        except ConfigError as error:
            told[name] = str(error) if torch.equal(model.weight, before) else "changed"
    return told


def main(store, rank, ranks):
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks, timeout=timedelta(seconds=90)
    )
    told = {
        "gpt": against_ddp(gpt, rank),
        "conv": against_ddp(conv, rank),
        "half": in_half(rank),
        "unused": with_unused_layers(rank),
        "accumulated": accumulated(rank),
        "masks": with_different_masks(rank),
        "settings": with_different_settings(rank),
        "mistakes": with_a_mistake_on_one_rank(rank),
        "ddp": wrapped_in_ddp(),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    leave()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
