"""Figures that need a process of their own: peak memory of a save, and the first save against the second.

Run as ``python -m dynaquant_core.experiments.bench.child PARAMETERS``; prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch

from dynaquant_core.experiments.bench.saving import CONFIG, layers, moved
from dynaquant_core.store import CheckpointStore

__all__ = ["main"]


def status_bytes(field: str) -> int:
    """A memory field of this process ("VmHWM", "VmRSS"), in bytes (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no field {field}.")


def peak_bytes_of_save(store: CheckpointStore, step: int, state: object) -> int:
    """Peak resident memory of one save above what was resident before it."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    before = status_bytes("VmRSS")
    store.save(step, state, config=CONFIG)
    return status_bytes("VmHWM") - before


def adam_state(parameters: int) -> dict[str, object]:
    """Weights with Adam's two moments, as an optimizer's state dict holds them."""
    weights = layers(parameters)
    moments = {
        index: {"exp_avg": 0.1 * tensor, "exp_avg_sq": tensor.square(), "step": torch.tensor(10.0)}
        for index, tensor in enumerate(weights.values())
    }
    groups = [{"lr": 1e-3, "params": list(range(len(weights)))}]
    return {"model": weights, "optimizer": {"state": moments, "param_groups": groups}}


def seconds_of_saves(root: Path) -> list[float]:
    """Wall seconds of the first, the second and the third save of this process, on a small state."""
    state = layers(1 << 20)
    store = CheckpointStore(root)
    taken = []
    for step in range(3):
        start = time.perf_counter()
        store.save(step, state, config=CONFIG)
        taken.append(time.perf_counter() - start)
        state = moved(state, seed=step + 1)
    return taken


def main(parameters: int) -> dict[str, object]:
    """All figures of this process."""
    with tempfile.TemporaryDirectory(prefix="dynaquant-bench-") as folder:
        root = Path(folder)
        saves = seconds_of_saves(root / "first")
        store = CheckpointStore(root / "weights")
        state = layers(parameters)
        count = sum(tensor.numel() for tensor in state.values())
        base = status_bytes("VmRSS")
        store.save(0, state, config=CONFIG)
        held = max(0, status_bytes("VmRSS") - base)  # the base's codes, and freed pages the allocator keeps
        state = moved(state)
        weights = peak_bytes_of_save(store, 1, state)
        del store
        whole = CheckpointStore(root / "whole")
        tree = adam_state(parameters)
        whole.save(0, tree, config=CONFIG)
        adam = peak_bytes_of_save(whole, 1, tree)
    return {
        "save_seconds": saves,
        "parameters": count,
        "weights_peak_bytes": weights,
        "weights_base_bytes": held,
        "adam_peak_bytes": adam,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(int(sys.argv[1]))))
