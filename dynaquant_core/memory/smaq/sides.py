"""Which module codes and decodes on a device: all of them give the same bits."""

from __future__ import annotations

from types import ModuleType

import torch

from dynaquant_core import device_jit
from dynaquant_core.memory.smaq import cpu_path, torch_path

__all__ = ["side_of"]


def side_of(device: torch.device) -> ModuleType:
    """The module: with ``encode``, ``read`` and ``settle``.

    Example:
        >>> side_of(torch.device("cpu")).__name__.rpartition(".")[2]
        'cpu_path'
    """
    if device_jit.compiles(device):
        from dynaquant_core.memory.smaq.device import path

        return path
    return cpu_path if device.type == "cpu" else torch_path
