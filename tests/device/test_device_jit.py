"""Whether kernels can be had: what is their fault, what is not, and what must not be taken for it."""

from __future__ import annotations

import threading

import pytest
import torch

from dynaquant_core import device_jit
from tests.triton_here import device_side


def raising(error):
    def attempt():
        raise error

    return attempt


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: unspecified launch failure"),
        RuntimeError("Triton Error [CUDA]: device-side assert triggered"),
        RuntimeError("Triton Error [CUDA]: uncorrectable ECC error encountered"),
    ],
)
def test_no_memory_and_a_broken_device_are_not_the_kernels_fault(error):
    """Kernels would be left alone until the process ends, for want of a megabyte at the wrong time."""
    with pytest.raises(type(error), match=str(error).rpartition(":")[2].strip()[:20]):
        device_jit.fault(raising(error))


@pytest.mark.parametrize(
    "message",
    [
        "Triton Error [CUDA]: device kernel image is invalid",
        "Triton Error [CUDA]: no kernel image is available for execution on the device",
        "Triton Error [CUDA]: the provided PTX was compiled with an unsupported toolchain.",
        "PassManager::run failed",
        "Failed to find C compiler. Please specify via CC environment variable.",
    ],
)
def test_what_cannot_be_compiled_or_loaded_is(message):
    assert device_jit.fault(raising(RuntimeError(message))) == f"RuntimeError: {message}"


def test_kernels_are_found_right_whatever_the_default_device_is():
    probe = device_side("dynaquant_core.device_probe").probe
    with torch.device("meta"):
        assert probe(torch.device("cpu"))


def test_threads_that_ask_first_try_once(monkeypatch):
    """Two would compile the same kernels at once."""
    asked, together = [], threading.Barrier(4)

    def attempt():
        together.wait()
        device_jit.compiles(torch.device("cuda", 0))

    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(device_jit, "fault", lambda _: asked.append(1) or threading.Event().wait(0.1) or "no")
    device_jit._tried.cache_clear()
    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    device_jit._tried.cache_clear()
    assert asked == [1]
