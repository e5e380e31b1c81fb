"""What SAMO's gradients are with kernels, which Triton's interpreter runs, and without."""

from __future__ import annotations

import importlib

import torch

from dynaquant_core import device_jit
from dynaquant_core.memory import samo
from tests.memory.samo_nets import OPTIMIZERS
from tests.triton_here import interpret

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def counted(monkeypatch):
    """Every device is said to have kernels; a list of how many layers each launch compresses."""
    interpret(monkeypatch)
    kernels, found = importlib.import_module("dynaquant_core.memory.samo.device_kernels"), []
    importlib.import_module("dynaquant_core.memory.samo.trial").agrees(torch.device("cpu"))  # not counted
    true = kernels.gather
    monkeypatch.setattr(
        kernels, "gather", lambda layers, *rest: found.append(len(layers)) or true(layers, *rest)
    )
    return found


def both(monkeypatch, life):
    """What ``life`` gives with kernels and without."""
    found = [life()]
    monkeypatch.setattr(device_jit, "compiles", lambda device: False)
    return [*found, life()]


def wrapped(model, dtype=torch.bfloat16, **options):
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    return optimizer, samo.wrap(model, optimizer, sparsity=0.7, dtype=dtype, **options)


def grads(handle):
    """Copies of what the optimizer sees."""
    return [None if one.grad is None else one.grad.clone() for one in handle.parameters()]


def same(one, other):
    """The same bits, and the same ones missing."""
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or (mine.dtype == theirs.dtype and torch.equal(mine, theirs))
