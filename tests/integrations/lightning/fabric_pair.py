"""Two ranks of Fabric: ``python -m tests.integrations.lightning.fabric_pair FOLDER HOW`` prints what came.

HOW is "plain" or "compiled".
"""

import json
import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import nn

from dynaquant_lightning import DynaQuantCheckpointIO
from tests.plugins.kit import slow_disk


def main(folder: Path, how: str) -> None:
    """Trains a net with a batch norm and searches with the module that ``fabric.setup`` gave."""
    io = DynaQuantCheckpointIO(threshold=0.05)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", plugins=[io])
    fabric.launch()
    torch.manual_seed(0)
    inputs, labels = torch.randn(64, 16), torch.randint(0, 4, (64,))
    net = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    compiled = torch.compile(net, backend="eager") if how == "compiled" else net
    model, optimizer = fabric.setup(compiled, optimizer)
    seen = []

    def evaluate():
        seen.append(fabric.global_rank)
        return float(nn.functional.cross_entropy(model(inputs), labels))

    io.watch(model, optimizer, evaluate=evaluate)
    state = {"model": model, "optimizer": optimizer, "step": 0}
    own = slice(32 * fabric.global_rank, 32 * fabric.global_rank + 32)
    slow_disk(2)
    for _ in range(4):
        fabric.backward(nn.functional.cross_entropy(model(inputs[own]), labels[own]))
        optimizer.step()
        optimizer.zero_grad()
        state["step"] += 1
        if state["step"] % 2 == 0:
            fabric.save(str(folder / "last.ckpt"), state)
    state["step"] = 0
    fabric.load(str(folder / "last.ckpt"), state)
    steps = fabric.all_gather(torch.tensor(state["step"])).tolist()
    broadcasts = [
        one.require_forward_param_sync
        for one in model.modules()
        if isinstance(one, nn.parallel.DistributedDataParallel)
    ]
    if fabric.global_rank == 0:
        said = {"steps": steps, "evaluations": len(seen), "broadcasts": broadcasts}
        sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
