"""Two-bit codes on a device are those of the CPU, byte for byte, and jobs on a device end where theirs do."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from dynaquant_core.comm import two_bit
from tests.device.places import EVERYWHERE, NEEDS_CUDA
from tests.gloo import play
from tests.training.models import bits


@EVERYWHERE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100_003])
def test_codes_and_residuals_are_the_same_bytes(count, dtype, device):
    here, there = torch.zeros(count), torch.zeros(count, device=device)
    sent = []
    for step in range(4):
        gradient = 0.4 * torch.randn(count, generator=torch.Generator().manual_seed(step)).to(dtype)
        gradient[step::97] = (float("nan"), float("inf"), -float("inf"), 0.5)[step]
        packed = two_bit.encode(here, gradient, 0.5, 0.25)
        sent.append(two_bit.encode(there, gradient.to(device), 0.5, 0.25))
        assert bits(packed)[1:] == bits(sent[-1])[1:]
        assert bits(here)[1:] == bits(there)[1:]
    rows = torch.stack(sent)
    sums = [two_bit.decode_sum(one, count, 0.5, 0.25, 4.0) for one in (rows.cpu(), rows)]
    assert sums[1].device.type == device
    torch.testing.assert_close(sums[1].cpu(), sums[0], rtol=0, atol=0, equal_nan=True)


@EVERYWHERE
def test_replicas_in_one_process(device):
    torch.manual_seed(0)
    replicas = [nn.Linear(16, 4).to(device) for _ in range(2)]
    for other in replicas[1:]:
        other.load_state_dict(replicas[0].state_dict())
    reducer = two_bit.LocalReducer(replicas, threshold=0.05)
    for step in range(3):
        for index, model in enumerate(replicas):
            model.zero_grad()
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + index))
            model(x.to(device)).square().mean().backward()
        reducer.reduce()
        assert bits(replicas[0].weight.grad) == bits(replicas[1].weight.grad)
        assert set(replicas[0].weight.grad.abs().unique().cpu().tolist()) <= {0.0, *LEVELS}


LEVELS = {float(torch.tensor(0.05)) * share for share in (0.5, 1.0, 2.0)}


@pytest.fixture(scope="module")
def on_the_cpu(tmp_path_factory):
    @cache
    def job(ranks):
        return play("tests.device.ranks", tmp_path_factory.mktemp("cpu"), ranks, "gloo-cpu")["gloo-cpu"]

    return job


@pytest.mark.parametrize(
    ("ranks", "act"),
    [
        (2, "gloo-cpu"),
        pytest.param(1, "nccl-cuda", marks=NEEDS_CUDA),
        pytest.param(1, "gloo-cuda", marks=NEEDS_CUDA),
        pytest.param(2, "gloo-cuda", marks=NEEDS_CUDA),
    ],
)
def test_a_job_ends_where_the_one_on_the_cpu_does(tmp_path, on_the_cpu, ranks, act):
    found = play("tests.device.ranks", tmp_path, ranks, act)[act]
    for mine, theirs in zip(found, on_the_cpu(ranks), strict=True):
        for part in ("two_bit", "samo"):
            ours, reference = (torch.tensor(one[part]["weights"]) for one in (mine, theirs))
            assert (ours - reference).abs().max() < 0.03, "sums of products are rounded in another order"
    weights = [one["two_bit"]["weights"] for one in found]
    assert all(one == weights[0] for one in weights), "ranks stay the same"
