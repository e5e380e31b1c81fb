"""Where a test runs: on the CPU, which proves the test, and on a CUDA device where there is one."""

from __future__ import annotations

import pytest
import torch

NEEDS_CUDA = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device: none in this machine"
)
CUDA = pytest.param("cuda", marks=NEEDS_CUDA)

#: For a parameter "device".
EVERYWHERE = pytest.mark.parametrize("device", ["cpu", CUDA])


def everywhere(few, many):
    """Each of ``many`` on a device, and of those ``few`` on the CPU, which is enough to prove the test."""
    found = [("cpu", case, ()) for case in few] + [("cuda", case, NEEDS_CUDA) for case in many]
    return [
        pytest.param(device, *case, id="-".join([device, *map(_word, case)]), marks=marks)
        for device, case, marks in found
    ]


def _word(value):
    return str(getattr(value, "__name__", value)).removeprefix("torch.")
