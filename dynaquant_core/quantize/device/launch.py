"""How kernels of the seam are started."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from dynaquant_core.device_jit import on

__all__ = ["LAUNCH", "programs", "starting"]

#: Values of one program.
TILE: Final = 1024

#: Every operation is rounded, as on the CPU.
LAUNCH: Final[dict[str, Any]] = {"TILE": TILE, "enable_fp_fusion": False}

_one_at_a_time = threading.Lock()


def programs(tensor: Tensor) -> tuple[int]:
    """The grid: a program a tile, one for an empty tensor."""
    return (max(1, -(-tensor.numel() // TILE)),)


@contextmanager
def starting(device: torch.device) -> Iterator[None]:
    """Inside, a kernel is started on a device, by one thread at a time: tensors are coded by several.

    Two that meet a kernel for the first time would both compile it.
    """
    with _one_at_a_time, on(device):
        yield
