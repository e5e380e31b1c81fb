"""Tensors that share memory: packed once where that can be, and counted as autograd would hold them."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from dynaquant_core.memory import smaq
from tests.memory.nets import ONLY_MAPS


class Gated(nn.Module):
    """Saves a map, and its two halves."""

    def __init__(self, dimension, whole="first"):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.dimension, self.whole = nn.Linear(64, 128), dimension, whole

    def forward(self, inputs):
        if self.whole == "first":
            hidden = self.layer(inputs).tanh()  # keeps what it gives
            left, right = hidden.chunk(2, self.dimension)
            return (left * right).sum()
        hidden = self.layer(inputs)
        left, right = hidden.chunk(2, self.dimension)
        return (left * right).sum() + (hidden.sin().sum() if self.whole == "last" else 0)


def held_by_autograd(model, batch):
    """Bytes of the memory behind what is saved, each storage once."""
    spared = {one.untyped_storage().data_ptr() for one in [*model.parameters(), batch]}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in spared:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model(batch)
    del out
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize(("whole", "tensors"), [("first", 1), ("never", 2), ("last", 3)])
def test_overlapping_views_are_counted_once_and_packed_once_if_the_whole_comes_first(
    dimension, whole, tensors
):
    batch = torch.randn(96, 64)
    model = Gated(dimension, whole)
    model(batch).backward()
    wanted = model.layer.weight.grad.clone()
    model.zero_grad()
    raw = held_by_autograd(model, batch)
    with smaq.apply(model, **ONLY_MAPS) as handle:
        out = model(batch)
        report = handle.report()
        assert report["saved"]["tensors"] == tensors
        assert report["saved"]["raw_bytes"] == report["memory"]["live_raw"] == raw == 96 * 128 * 4
        assert report["saved"]["stored_bytes"] == report["memory"]["live"]
        assert report["saved"]["benefit"] > 4 if tensors < 3 else report["saved"]["benefit"] < 3
        out.backward()
        del out
        gc.collect()
        assert handle.report()["memory"]["live_raw"] == handle.report()["memory"]["live"] == 0
    assert (model.layer.weight.grad - wanted).norm() < 0.25 * wanted.norm()


@pytest.mark.parametrize("dimension", [0, 1])
def test_slices_of_a_packed_tensor_are_those_of_what_was_packed(dimension):
    """With a format that takes nothing away the gradient is the true one."""
    batch, found = torch.randn(96, 64), []
    for coded in (False, True):
        model = Gated(dimension)
        handle = smaq.apply(model, **ONLY_MAPS, format="fp32") if coded else None
        model(batch).backward()
        found.append(model.layer.weight.grad)
        assert not handle or handle.report()["saved"]["tensors"] == 1
        if handle:
            handle.remove()
    assert torch.equal(*found)


class Conjugated(nn.Linear):
    """Parts of a number and of its conjugate, whose imaginary part is the opposite in the same memory."""

    def __init__(self, part):
        super().__init__(64, 64)
        self.part = part

    def forward(self, batch):
        number = torch.fft.fft(super().forward(batch))
        return self.part(number, number.conj())


PARTS = {
    "square": lambda number, other: number.real * other.real - number.imag * other.imag,
    "other first": lambda number, other: other.imag.tanh() + other.imag * number.imag,
    "dense": lambda number, _: torch._neg_view(number.real.contiguous()).square(),
}


@pytest.mark.parametrize(("form", "off"), [("fp32", 0.0), ("bf16", 0.01), ("smaq", 0.3)])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_torch_only_marks_as_negative_keeps_its_sign(part, form, off):
    batch, found = torch.randn(96, 64), []
    for coded in (False, True):
        torch.manual_seed(0)
        model = Conjugated(PARTS[part])
        handle = smaq.apply(model, **ONLY_MAPS, format=form) if coded else None
        model(batch).sum().backward()
        found.append(model.weight.grad)
        if handle:
            assert handle.report()["saved"]["tensors"]
            handle.remove()
    assert (found[1] - found[0]).norm() <= off * found[0].norm()


def test_a_slice_of_a_tensor_that_was_written_to_is_packed_anew():
    class Written(nn.Linear):
        def forward(self, batch):
            held = super().forward(batch).detach()
            first = (held * self.weight[0, 0]).sum()
            held.mul_(3)
            return first + (held[:32] * self.weight[0, 0]).sum()

    model, batch = Written(64, 64), torch.randn(64, 64)
    with smaq.apply(model, **ONLY_MAPS, format="fp32") as handle:
        model(batch).backward()
        assert handle.report()["saved"]["tensors"] == 2
    made = nn.functional.linear(batch, model.weight, model.bias)
    assert torch.allclose(model.weight.grad[0, 0], made.sum() + 3 * made[:32].sum(), rtol=1e-4)
