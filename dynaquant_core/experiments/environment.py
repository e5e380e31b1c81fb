"""Where an experiment ran: versions, processor, threads."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dynaquant_core.experiments.trainer import device_name

__all__ = ["environment"]


def environment() -> dict[str, Any]:
    """JSON-ready facts that a figure depends on."""
    device = device_name()
    return {
        "dynaquant": _version("dynaquant"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "numba": _version("numba"),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": device if device == "cpu" else torch.cuda.get_device_name(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from source"


def _processor() -> str:
    """Linux names the processor in a file; elsewhere the platform module does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
