"""Triton's interpreter: kernels for a device as numpy, where there is no device."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest
import torch

from dynaquant_core import device_jit


def require_interpreter() -> None:
    """Skips where kernels cannot be interpreted, or need not be."""
    if torch.cuda.is_available():
        pytest.skip("tests/device run the kernels on the device")
    try:
        found = version("triton")
    except PackageNotFoundError:
        pytest.skip("Triton is not installed")
    if tuple(int(part) for part in found.split(".")[:2]) < (3, 9):
        pytest.skip(f"the interpreter of Triton {found} does not know today's numpy; 3.9 does")


def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, which `conftest` has interpreted, are taken for those of every device."""
    require_interpreter()
    monkeypatch.setattr(device_jit, "compiles", lambda device: True)
