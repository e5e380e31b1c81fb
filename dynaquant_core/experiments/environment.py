"""Where an experiment ran: versions, processor, threads."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from dynaquant_core.experiments.machine import accelerator, processor
from dynaquant_core.threads import cores

__all__ = ["environment"]


def environment() -> dict[str, Any]:
    """JSON-ready facts that a figure depends on."""
    return {
        "dynaquant": _version("dynaquant"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "numba": _version("numba"),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": cores(),
        "torch_threads": torch.get_num_threads(),
        "device": accelerator(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from source"
