"""In a process of its own: `dynaquant warm`, then trainings; prints what these had to compile beyond it.

A kernel is compiled, or read from the cache, once for each combination of types, which is kept with it; so
this tells what would be missing in an empty cache without emptying one.
"""

from __future__ import annotations

import json
import sys
import tempfile

import torch
from numba.core.dispatcher import Dispatcher
from torch import nn

import dynaquant_core as dq
from dynaquant_core.cli import main


def compiled() -> set[str]:
    """Every kernel that this process has, with the types it was called with."""
    kernels = [
        value
        for name, module in list(sys.modules.items())
        if name.startswith("dynaquant_core") and module is not None
        for value in vars(module).values()
        if isinstance(value, Dispatcher)
    ]
    return {f"{kernel.py_func.__qualname__}{types}" for kernel in kernels for types in kernel.signatures}


def three_lives(method: str, moments: str, dtype: torch.dtype) -> None:
    """The README's loop: a small network that moves little, restored twice."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(dtype)
    inputs, labels = torch.randn(256, 64, dtype=dtype), torch.randint(0, 10, (256,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = nn.CrossEntropyLoss()

    @torch.no_grad()
    def evaluate() -> float:
        return loss(model(inputs).float(), labels).item()

    with tempfile.TemporaryDirectory(prefix="dynaquant-") as folder:
        for _ in range(3):
            settings = {"every": 10, "evaluate": evaluate, "threshold": 0.05}
            settings |= {"method": method, "moments": moments}
            with dq.Checkpointer(folder, model, optimizer, **settings) as checkpointer:
                begun = checkpointer.restore()
                for step in range(begun, begun + 30):
                    optimizer.zero_grad()
                    chosen = slice(step % 4 * 64, (step % 4 + 1) * 64)
                    loss(model(inputs[chosen]).float(), labels[chosen]).backward()
                    optimizer.step()
                    checkpointer.step()


if __name__ == "__main__":
    assert main(["warm"]) == 0
    known = compiled()
    three_lives("lattice", "8bit", torch.float32)
    three_lives("lattice", "compact", torch.bfloat16)
    three_lives("dynaquant", "8bit", torch.float32)
    three_lives("dynaquant", "8bit", torch.float64)
    sys.stdout.write(json.dumps(sorted(compiled() - known)) + "\n")
