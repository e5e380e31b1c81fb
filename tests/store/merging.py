"""Stores of the method lc that merge, and their twins that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dynaquant_core.methods.lc import Lc, LcConfig
from dynaquant_core.store import CheckpointStore
from tests.store.kit import small_state

TWO = LcConfig(bits=2)


def state_of(step: int) -> dict[str, Any]:
    """Ten tensors in every part; moments of one parameter and a bias do not change after step 20."""
    now, still = small_state(step), small_state(min(step, 20))
    names = ("layer0.weight", "layer1.weight", "layer0.bias", "half.weight", "count")
    model = {name: now["model"][name] for name in names}
    moments = {0: now["optimizer"]["state"][0], 1: still["optimizer"]["state"][1]}
    return {
        "model": model | {"layer1.bias": still["model"]["layer1.bias"]},
        "optimizer": {"state": moments, "param_groups": now["optimizer"]["param_groups"]},
        "step": step,
    }


def lc_store(path: Path, super_step: int = 0, method: Lc | None = None, **options: Any) -> CheckpointStore:
    """A store whose chains are as long as they get."""
    return CheckpointStore(path, method=method or Lc(super_step=super_step), max_chain=100, **options)


def saved(store: CheckpointStore, *steps: int) -> None:
    """Saves `state_of` each step at two bits."""
    for step in steps:
        store.save(step, state_of(step), config=TWO)


def expected(folder: Path, steps: tuple[int, ...]) -> dict[int, Any]:
    """Step -> what a reader gets of it where nothing is ever merged."""
    with lc_store(folder) as twin:
        saved(twin, *steps)
    reader = CheckpointStore(folder)
    return {step: reader.load(step) for step in steps}
