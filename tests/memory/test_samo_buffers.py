"""Buffers of a model in half precision: finite while it is wrapped, and what they were afterwards."""

import math

import pytest
import torch
from torch import nn

from dynaquant_core.memory import samo


def test_buffers_that_modules_share_stay_shared():
    class Queue(nn.Module):
        def __init__(self, queue):
            super().__init__()
            self.register_buffer("queue", queue)

    queue = torch.zeros(4)
    model = nn.ModuleDict({"a": Queue(queue), "b": Queue(queue), "layer": nn.Linear(16, 16)})
    handle = samo.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model["a"].queue += 1
    assert model["b"].queue.tolist() == [1.0] * 4
    assert model["a"].queue.dtype == torch.float16
    handle.unwrap()
    model["a"].queue += 1
    assert model["b"].queue.tolist() == [2.0] * 4
    assert model["b"].queue.dtype == torch.float32


class Masked(nn.Module):
    """A layer beside constants that half precision cannot hold, some of them not even roughly."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("never", torch.tensor(-1e9))
        self.register_buffer("mask", torch.full((16, 16), torch.finfo(torch.float32).min).triu(1))
        self.register_buffer("open", torch.tensor([0.0, -math.inf, math.inf, math.nan]))
        self.register_buffer("frequencies", 10000 ** -(torch.arange(16) / 16))
        self.register_buffer("exact", torch.tensor([1 / 3], dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        """Attention of a kind."""
        y = self.layer(x) * self.frequencies
        scores = (y @ y.T + self.mask).masked_fill(self.open[0] > 0, self.never)
        return scores.softmax(-1) @ y


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_buffers_are_given_back_as_they_were_but_for_those_that_were_written_to(dtype):
    torch.manual_seed(0)
    model = Masked()
    before = {name: one.clone() for name, one in model.named_buffers()}
    optimizer = torch.optim.AdamW(model.parameters())
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype)
    assert {one.dtype for one in model.buffers()} == {dtype}
    model(torch.randn(16, 16)).square().mean().backward()
    optimizer.step()
    model.seen.add_(0.5)
    model.load_state_dict(model.state_dict())  # as a resumed run has it: writes what is there
    handle.unwrap()
    assert torch.equal(model.seen, torch.full((3,), 0.5))
    for name, one in model.named_buffers():
        assert one.dtype == before[name].dtype
        if name != "seen":
            assert torch.equal(one.nan_to_num(7.0), before[name].nan_to_num(7.0)), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_finite_buffer_stays_finite_and_what_is_masked_everywhere_is_a_number(dtype):
    model = Masked()
    model.mask.fill_(torch.finfo(torch.float32).min)
    samo.wrap(model, torch.optim.AdamW(model.parameters()), sparsity=0.5, dtype=dtype)
    assert bool(model.mask.isfinite().all())
    assert bool(model.never.isfinite())
    assert [str(float(one)) for one in model.open] == ["0.0", "-inf", "inf", "nan"]
    assert bool(model(torch.randn(16, 16)).isfinite().all())


def test_a_ticket_drawn_later_has_the_buffers_too():
    torch.manual_seed(0)
    model = Masked()
    frequencies = model.frequencies.clone()
    optimizer = torch.optim.AdamW(model.parameters())
    handle = samo.wrap(model, optimizer, pruner=samo.EarlyBird(window=1, distance=1.0))
    assert any(handle.end_epoch() for _ in range(3))
    handle.unwrap()
    assert torch.equal(model.frequencies, frequencies)
