"""SAMO's gradients on a device: many in one kernel, whatever backward does, and what they wait in."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dynaquant_core import device_jit
from dynaquant_core.memory import samo
from tests.device.places import NEEDS_CUDA
from tests.memory.samo_nets import gpt
from tests.training.models import bits


class Checkpointed(nn.Module):
    """A GPT whose blocks run again in backward, each in a backward pass of its own."""

    def __init__(self):
        super().__init__()
        self.gpt = gpt()
        for one in self.gpt.blocks:
            one.forward = partial(checkpoint, one.forward, use_reentrant=True)

    def forward(self, tokens):
        return self.gpt(tokens)


def with_a_scaler(model, optimizer, handle):
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24, growth_interval=3)
    for step in range(12):
        optimizer.zero_grad()
        for part in range(2):
            with torch.autocast("cuda", torch.float16):
                loss = token_loss(model, 2 * step + part)
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(handle.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert handle.skipped == 0
    assert scaler.get_scale() < 2.0**24


def on_streams(model, optimizer, _):
    """Forward, and with it backward, on one stream that is behind; called, and used, on another."""
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for step in range(6):
        with torch.cuda.stream(other):
            optimizer.zero_grad()
            side.wait_stream(other)
            with torch.cuda.stream(side):
                torch.cuda._sleep(10_000_000)
                loss = token_loss(model, step)
            loss.backward()
            optimizer.step()
            side.wait_stream(other)
    torch.cuda.synchronize()


def token_loss(model, seed):
    start = torch.randint(0, 31, (8, 1), generator=torch.Generator().manual_seed(seed))
    tokens = ((start + 3 * torch.arange(17)) % 31).cuda()
    return functional.cross_entropy(model(tokens[:, :-1]).float().flatten(0, 1), tokens[:, 1:].flatten())


@NEEDS_CUDA
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("life", [with_a_scaler, on_streams])
@pytest.mark.parametrize("build", [gpt, Checkpointed])
def test_samo_gathers_gradients_to_the_same_bits(monkeypatch, build, life, dtype):
    def trained():
        model = build().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        handle = samo.wrap(model, optimizer, sparsity=0.8, dtype=dtype)
        life(model, optimizer, handle)
        return bits(model.state_dict())

    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    try:
        gathered = trained()
        monkeypatch.setattr(device_jit, "compiles", lambda device: False)
        assert trained() == gathered
    finally:
        torch.use_deterministic_algorithms(mode=False)


@NEEDS_CUDA
def test_samo_holds_a_sixteenth_of_the_dense_gradients_while_backward_runs(monkeypatch):
    def peak():
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(64))).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        samo.wrap(model, optimizer, sparsity=0.9, dtype=torch.bfloat16)
        x = torch.randn(4, 512, device="cuda", dtype=torch.bfloat16)
        for _ in range(3):
            optimizer.zero_grad()
            gc.collect()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            model(x).float().square().mean().backward()
        return torch.cuda.max_memory_allocated() - before

    gathered = peak()
    monkeypatch.setattr(device_jit, "compiles", lambda device: False)
    single = peak()
    assert single < gathered <= single + 64 * 512 * 512 * 2 / 16 + 2**18
