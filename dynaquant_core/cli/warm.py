"""``dynaquant warm``: compiles the kernels and fills Numba's cache before anybody waits for it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dynaquant_core.cli.output import write_line
from dynaquant_core.cli.progress import working
from dynaquant_core.config import Config, LatticeConfig, Metric
from dynaquant_core.store import CheckpointStore

__all__ = ["warm"]

#: Large enough that every codec is worth trying, small enough that compiling is all of the time.
WIDTH = 512

#: Careful enough once that a cell takes more than a byte.
SCALES = (0.5, 0.5, 0.05)


def warm() -> None:
    """Compile every kernel once; later processes read them from the cache."""
    start = time.monotonic()
    with working("compiling kernels"), tempfile.TemporaryDirectory(prefix="dynaquant-") as folder:
        rehearse(
            Path(folder) / "lattice", {"name": "lattice"}, [LatticeConfig(scale=scale) for scale in SCALES]
        )
        metrics: tuple[Metric, ...] = ("magnitude", "sensitivity", "sensitivity")
        points = [Config(prune=0.1, protect=0.005, prune_metric=metric) for metric in metrics]
        for coder in ("auto", "paper"):
            rehearse(Path(folder) / coder, {"name": "dynaquant", "coder": coder}, points)
    write_line(f"kernels are compiled and cached ({time.monotonic() - start:.1f} s)")


def rehearse(folder: Path, method: dict[str, Any], points: Sequence[Any]) -> None:
    """Saves a key and deltas of a small state with moments and gradients, restores, and saves once more.

    Args:
        folder: of the store.
        method: as `CheckpointStore` takes it.
        points: the configuration of each save.
    """
    generator = torch.Generator().manual_seed(0)
    weights = {
        "attn.weight": torch.randn(WIDTH, WIDTH, generator=generator),
        "fc.weight": torch.randn(WIDTH, WIDTH, generator=generator).bfloat16(),
        "norm.weight": torch.ones(WIDTH),
        "gate.weight": torch.randn(32, 32, generator=generator),  # small ones share their tables
        "head.weight": torch.randn(48, 32, generator=generator),
    }
    gradients = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in weights.items()}
    store = CheckpointStore(folder, method=method)
    for step, config in enumerate([*points, points[-1]]):
        if step == len(points):
            store.load()  # what follows a restore is coded in another way
        state = {"model": weights, "optimizer": moments(weights, generator)}
        store.save(step, state, config=config, gradients=gradients)
        for tensor in weights.values():
            tensor.add_(torch.randn(tensor.shape, generator=generator).to(tensor.dtype), alpha=0.01)
    store.load()


def moments(weights: dict[str, torch.Tensor], generator: torch.Generator) -> dict[str, Any]:
    """An optimizer's state as Adam would hold it."""
    first = [torch.randn(tensor.shape, generator=generator) for tensor in weights.values()]
    state = {
        index: {"step": torch.tensor(1.0), "exp_avg": value, "exp_avg_sq": value.square()}
        for index, value in enumerate(first)
    }
    return {"state": state, "param_groups": [{"lr": 1e-3, "params": list(state)}]}
