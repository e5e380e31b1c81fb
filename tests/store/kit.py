"""States to save, and what must come back."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynaquant_core.store import CheckpointStore

STEPS_BEFORE = (10, 20, 30)


def small_state(step: int, seed: int = 0) -> dict[str, Any]:
    """Twenty tensors of four dtypes, about 50 kB; neighbouring steps resemble each other."""
    fixed = torch.Generator().manual_seed(seed)
    moving = torch.Generator().manual_seed(1000 * seed + step)

    def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        start = torch.randn(*shape, generator=fixed)
        return (start + 0.01 * torch.randn(*shape, generator=moving)).to(dtype)

    layers = {f"layer{i}.weight": tensor(24, 32) for i in range(6)}
    layers |= {f"layer{i}.bias": tensor(32) for i in range(6)}
    layers |= {"half.weight": tensor(20, 20, dtype=torch.bfloat16), "count": torch.tensor(step)}
    moments = {
        i: {"step": torch.tensor(float(step)), "exp_avg": tensor(24, 32), "exp_avg_sq": tensor(24, 32) ** 2}
        for i in range(2)
    }
    return {
        "model": layers,
        "frozen": torch.arange(600).reshape(20, 30).double(),
        "optimizer": {"state": moments, "param_groups": [{"lr": 0.1 / (1 + step), "betas": (0.9, 0.999)}]},
        "rng": np.arange(40, dtype=np.uint32) + step,
        "step": step,
    }


def is_same(left: Any, right: Any) -> bool:
    """Whether two states are equal in structure, types and every bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(is_same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(is_same, left, right))
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and _bits(left) == _bits(right)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    return bool(left == right)


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def exact_store(path: Path, **options: Any) -> CheckpointStore:
    """A store in which everything is exact, so that what comes back is known bit for bit."""
    return CheckpointStore(path, method="exact", moments="exact", **options)


def filled(path: Path, steps: tuple[int, ...] = STEPS_BEFORE, **options: Any) -> None:
    """Saves `small_state` of each step into ``path``."""
    with exact_store(path, **options) as store:
        for step in steps:
            store.save(step, small_state(step))


def checkpoint_files(path: Path) -> list[Path]:
    """The checkpoint files of a folder, by commit sequence."""
    return sorted(path.glob("step-*.dq"), key=lambda file: file.name.split("-seq-")[1])


def leftovers(path: Path) -> list[str]:
    """Names of temporary files in a folder."""
    return sorted(file.name for file in path.glob("*.tmp-*"))


def call_instead(patch: pytest.MonkeyPatch, name: str, function: Callable[..., Any]) -> None:
    """A function in the place of one of `os`; for `pathlib` too, which has its own in Python 3.10."""
    patch.setattr(os, name, function)
    accessor = getattr(pathlib, "_NormalAccessor", None)
    if accessor is not None and hasattr(accessor, name):
        patch.setattr(accessor, name, staticmethod(function))
