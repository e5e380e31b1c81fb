"""Triton's interpreter: kernels for a device as numpy, where there is no device."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import pytest
import torch

from dynaquant_core import device_jit


def why_not() -> str | None:
    """Why kernels cannot be interpreted here, or need not be; None: they can."""
    if torch.cuda.is_available():
        return "tests/device run the kernels on the device"
    try:
        found = version("triton")
    except PackageNotFoundError:
        return "Triton is not installed"
    if tuple(int(part) for part in found.split(".")[:2]) < (3, 9):
        return f"the interpreter of Triton {found} does not know today's numpy; 3.9 does"
    return None


def require_interpreter() -> None:
    """Skips where `why_not` has a reason."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


def device_side(name: str) -> ModuleType:
    """A module of kernels for a device, which are interpreted; skips where they cannot be."""
    require_interpreter()
    return importlib.import_module(name)


def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, which `conftest` has interpreted, are taken for those of every device."""
    require_interpreter()
    monkeypatch.setattr(device_jit, "compiles", lambda device: True)
