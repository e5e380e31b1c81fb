"""Under another default device (`torch.set_default_device`) everything works as without one.

What lies in host memory must be made there, whatever new tensors get; "meta" has no values, so that whatever
is made there is missed.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynaquant_core.comm import two_bit
from dynaquant_core.memory import samo, smaq
from dynaquant_core.store import CheckpointStore
from dynaquant_core.training import Checkpointer
from tests.training.models import bits


@pytest.fixture
def elsewhere():
    """Another default device."""
    with torch.device("meta"):
        yield


@pytest.fixture
def pair():
    """A model and its optimizer, made before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.fixture
def batch():
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(0))


def step(pair, batch):
    model, optimizer = pair
    optimizer.zero_grad()
    loss = model(batch).float().square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize(
    "method", ["lattice", "dynaquant", "qd", "cnr", "lc", "scar", "topn", "excp", "gobo"]
)
def test_a_store_saves_and_loads(tmp_path, pair, batch, method, elsewhere):
    store = CheckpointStore(tmp_path, method=method)
    for number in (1, 2, 3):
        step(pair, batch)
        store.save(number, {"model": pair[0].state_dict(), "optimizer": pair[1].state_dict()})
    loaded = store.load(3)
    assert all(one.device.type == "cpu" for one in loaded["model"].values())
    assert all((one - pair[0].state_dict()[name]).abs().max() < 1 for name, one in loaded["model"].items())
    assert store.verify(deep=True) == []


def test_a_training_is_searched_saved_and_restored(tmp_path, pair, batch, elsewhere):
    model, optimizer = pair
    options = {"evaluate": lambda: float(model(batch).square().mean()), "every": 2}
    with Checkpointer(tmp_path, model, optimizer, **options) as checkpoints:
        for _ in range(6):
            step(pair, batch)
            checkpoints.step()
    with Checkpointer(tmp_path, model, optimizer, **options) as checkpoints:
        assert checkpoints.restore() == 6
    step(pair, batch)
    assert {one.device.type for one in model.parameters()} == {"cpu"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_samo_trains_and_resumes(pair, batch, dtype, elsewhere):
    model, optimizer = pair
    handle = samo.wrap(model, optimizer, sparsity=0.5, dtype=dtype, loss_scale=4.0)
    for _ in range(2):
        handle.scale(model(batch).square().mean()).backward()
        torch.nn.utils.clip_grad_norm_(handle.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    saved = {key: value.clone() for key, value in model.state_dict().items()}, optimizer.state_dict()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    samo.memory_report(handle)
    handle.unwrap()
    assert bits({key: one.to(dtype) for key, one in model.state_dict().items()}) == bits(saved[0])


@pytest.mark.parametrize("kind", [smaq.SmaQ(), smaq.SmaQ(statistics="sample", sample=64), smaq.S2FP8()])
def test_smaq_trains_and_resumes(pair, batch, kind, elsewhere):
    model, optimizer = pair
    losses = []
    with smaq.apply(model, optimizer, format=kind, smallest=64) as handle:
        for _ in range(3):
            losses.append(float(step(pair, batch)))
            handle.load_state_dict(handle.state_dict())
        handle.reseed(5)
        handle.report()
    assert losses[-1] < losses[0]


def test_two_bits_are_coded_summed_and_redistributed(batch, elsewhere):
    residual = torch.zeros(8, device="cpu")
    gradient = torch.from_numpy(batch.numpy()[0, :8].copy())
    packed = two_bit.encode(residual, gradient, 0.5, 0.5)
    total = two_bit.decode_sum(packed[None], 8, 0.5, 0.5)
    assert torch.allclose(total + residual, gradient)
    state = {"rank": 0, "ranks": 1, "step": 7, "parameters": {"w": {"residual": residual}}}
    states = two_bit.redistribute([state], ranks=2, reduce="sum")
    both = sum(one["parameters"]["w"]["residual"] for one in states)
    assert torch.allclose(both, residual)
