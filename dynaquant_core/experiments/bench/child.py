"""Figures that need a process of their own: peak memory of a save, and the first save against the second.

Run as ``python -m dynaquant_core.experiments.bench.child PARAMETERS weights|adam|search METHOD``; prints one
JSON object.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynaquant_core.experiments.bench.saving import CONFIGS, disk, layers, moved
from dynaquant_core.state import flatten
from dynaquant_core.store import CheckpointStore
from dynaquant_core.training import Checkpointer

__all__ = ["main"]


def status_bytes(field: str) -> int:
    """A memory field of this process ("VmHWM", "VmRSS"), in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no field {field}.")


def peak_bytes_of(save: Callable[[], object]) -> int:
    """Peak resident memory of one save above what was resident before it."""
    ctypes.CDLL(None).malloc_trim(0)  # pages that the allocator keeps would hide what the save takes
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    before = status_bytes("VmRSS")
    save()
    return status_bytes("VmHWM") - before


def resident_after(save: Callable[[], object]) -> int:
    """What a save leaves resident."""
    ctypes.CDLL(None).malloc_trim(0)
    before = status_bytes("VmRSS")
    save()
    ctypes.CDLL(None).malloc_trim(0)
    return max(0, status_bytes("VmRSS") - before)


def adam_state(weights: dict[str, Tensor]) -> dict[str, Any]:
    """Weights with Adam's two moments, as an optimizer's state dict holds them."""
    moments = {
        index: {"exp_avg": 0.1 * tensor, "exp_avg_sq": tensor.square(), "step": torch.tensor(10.0)}
        for index, tensor in enumerate(weights.values())
    }
    groups = [{"lr": 1e-3, "params": list(range(len(weights)))}]
    return {"model": weights, "optimizer": {"state": moments, "param_groups": groups}}


def seconds_of_saves(root: Path, method: str) -> list[float]:
    """Wall seconds of the first, the second and the third save of this process, on a small state."""
    state = layers(1 << 20)
    store = CheckpointStore(root, method=method)
    taken = []
    for step in range(3):
        start = time.perf_counter()
        store.save(step, state, config=CONFIGS[method])
        taken.append(time.perf_counter() - start)
        state = moved(state, seed=step + 1)
    return taken


def main(parameters: int, what: str, method: str) -> dict[str, object]:
    """The figures of one process: of weights alone, with Adam's moments, or with a search."""
    with disk() as root:
        saves = seconds_of_saves(root / "first", method)
        state = layers(parameters)
        count = sum(tensor.numel() for tensor in state.values())
        measure = searched if what == "search" else saved
        if what == "search":  # the code that a first search loads is the process's, as the kernels above are
            searched(root / "small", method, layers(1 << 20))
        tree = adam_state(state) if what == "adam" else state
        base, peak = measure(root / "store", method, tree)
    return {
        "save_seconds": saves,
        "parameters": count,
        "base_bytes_per_parameter": base / count,
        "peak_bytes_per_parameter": (base + peak) / count,
    }


def saved(path: Path, method: str, tree: dict[str, Any]) -> tuple[int, int]:
    """(bytes that a first save leaves, peak of a second) with a fixed configuration."""
    store, config = CheckpointStore(path, method=method), CONFIGS[method]
    base = resident_after(lambda: store.save(0, tree, config=config))
    advanced(tree)
    return base, peak_bytes_of(lambda: store.save(1, tree, config=config))


def searched(path: Path, method: str, tree: dict[str, Any]) -> tuple[int, int]:
    """The same where a search decodes candidates into the model and measures them."""
    model = nn.ParameterList(tree.values())
    evaluate = partial(energy, model)
    with Checkpointer(path, model, every=1, evaluate=evaluate, threshold=0.01, method=method) as checkpoints:

        def save() -> None:
            checkpoints.step()
            checkpoints.wait()

        base = resident_after(save)
        advanced(tree)
        return base, peak_bytes_of(save)


def energy(model: nn.ParameterList) -> float:
    """A metric of all weights that takes no memory of its own."""
    flat = [parameter.detach().view(-1) for parameter in model]
    return sum(float(torch.dot(values, values)) for values in flat)


def advanced(tree: object) -> None:
    """Every floating tensor moved in place: a training step needs no second copy of the state."""
    for leaf in flatten(tree).leaves:
        leaf.tensor.mul_(1.001)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(int(sys.argv[1]), sys.argv[2], sys.argv[3])))
