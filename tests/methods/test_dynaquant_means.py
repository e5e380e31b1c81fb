"""What is decoded is right on average: equal values, values far from zero, values of few bits."""

from __future__ import annotations

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.dynaquant import DynaQuant
from tests.methods.streams import StreamTable, store

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def read(tensor: torch.Tensor, config: dq.Config | None = None, **options) -> torch.Tensor:
    """What a reader gets of a matrix beside an ordinary one."""
    state = {"a.weight": tensor, "b.weight": normal(96, 96, seed=1).to(tensor.dtype)}
    return store(DynaQuant(**options), state, None, config or dq.Config())[2].state()["a.weight"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [1.0, 0.3, -2.0, 1e-3])
def test_equal_values_are_decoded_as_they_are(tmp_path, dtype, value):
    exact = torch.full((64, 64), value, dtype=dtype)
    dq.save_file({"w": exact}, tmp_path / "w.dq", method="dynaquant")
    assert torch.equal(dq.load_file(tmp_path / "w.dq")["w"], exact)


@pytest.mark.parametrize("scope", ["tensor", "auto"])
@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_two_values_far_apart_are_decoded_as_they_are(dtype, scope):
    """The buckets that hold them have middles that are 0.8% off."""
    exact = torch.where(normal(80, 80) < 0, -1.0, 3.0).to(dtype)
    assert torch.equal(read(exact, codebook_scope=scope), exact)


@pytest.mark.parametrize("bins", [8, 32])
@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_weights_come_back_as_long_as_they_were_along_themselves(dtype, bins):
    exact = (0.02 * normal(512, 512)).to(dtype)
    found = read(exact, dq.Config(bins=bins, protect=0.0), sigma=1.0).double()
    centred = float(found.abs().mean() / exact.double().abs().mean())
    assert abs(centred - 1) < 5e-4


@pytest.mark.parametrize("scope", ["tensor", "global"])
def test_a_matrix_far_from_zero_keeps_its_spread(scope):
    """Its error is small against its values whatever becomes of what tells them apart."""
    exact = 1 + 0.05 * normal(128, 128)
    found = read(exact, dq.Config(bins=16), codebook_scope=scope)
    assert (found - exact).norm() < 0.25 * (exact - exact.mean()).norm()


def kept(before: torch.Tensor, moved: torch.Tensor, found: torch.Tensor) -> tuple[float, float]:
    """(share of a movement that a reader gets, its standard error)."""
    movement, error = (moved - before).double(), (found - moved).double()
    energy = float(movement.square().sum())
    return 1 + float((error * movement).sum()) / energy, float(
        (error * movement).square().sum()
    ) ** 0.5 / energy


@pytest.mark.parametrize("spread", [1e-4, 0.005, 0.02])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_restore_loses_movement_of_values_near_one(tmp_path, spread, dtype):
    state = {"w": (1 + spread * normal(128, 300)).to(dtype), "b": normal(64, 64)}
    dq.CheckpointStore(tmp_path, method="dynaquant").save(1, state)
    for step in range(2, 6):
        run = dq.CheckpointStore(tmp_path, method="dynaquant")
        begun = run.load()
        size = max(0.1 * spread, torch.finfo(dtype).eps)
        moved = begun["w"] + size * torch.where(torch.arange(300) % 2 == 0, 1.0, -1.0).to(dtype)
        run.save(step, {"w": moved, "b": begun["b"]})
        found = dq.CheckpointStore(tmp_path, method="dynaquant").load()["w"]
        share, error = kept(begun["w"], moved, found)
        assert abs(share - 1) <= 4 * error + 1e-3


@pytest.mark.parametrize("scope", ["tensor", "global"])
def test_codes_are_drawn_up_to_the_ends_of_the_outermost_bucket(scope):
    """All values lie in two buckets, and half of them beyond the mean of theirs."""
    method, config = DynaQuant(codebook_scope=scope), dq.Config(protect=0.0)

    def decoded(state, ref):
        return method.decode(StreamTable(method.draft(state, ref, config, Hints()).encode()[0], state), ref)

    state = {"w": 1 + 1e-4 * normal(128, 300)}
    held = decoded(state, None)
    for _ in range(3):
        before = held.state()["w"]
        state = {"w": before + 2e-5 * torch.where(torch.arange(300) % 2 == 0, 1.0, -1.0)}
        held = decoded(state, held)
        share, error = kept(before, state["w"], held.state()["w"])
        assert abs(share - 1) <= 4 * error


def test_a_matrix_of_ones_that_learns_is_coded_from_then_on(tmp_path):
    state = {"w": torch.ones(96, 96), "b": normal(96, 96)}
    writer = dq.CheckpointStore(tmp_path, method="dynaquant")
    for step in range(1, 5):
        writer.save(step, state)
        found = dq.CheckpointStore(tmp_path, method="dynaquant").load()["w"]
        spread = (state["w"] - 1).norm()
        assert (found - state["w"]).norm() <= 0.25 * spread
        state = {"w": state["w"] + 0.1 * normal(96, 96, seed=step), "b": state["b"]}
