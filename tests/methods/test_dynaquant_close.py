"""Values close together for their size: what tells them apart is stored, or they are kept in words."""

from __future__ import annotations

import pytest
import torch

import dynaquant_core as dq
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.dynaquant import DynaQuant
from dynaquant_core.methods.dynaquant.book import ERROR_CAP
from tests.methods.streams import StreamTable, assert_same, store

CONFIGS = [dq.Config(bins=16, prune=0.1, protect=0.005), dq.Config(bins=64, protect=0.0)]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """RMS error against the spread."""
    exact = exact.double()
    return float((found.double() - exact).norm() / (exact - exact.mean()).norm())


def saved(tensor: torch.Tensor, config: dq.Config, folder) -> torch.Tensor:
    state = {"a.weight": tensor, "b.weight": normal(300, 300, seed=1)}
    dq.save_file(state, folder / "a.dq", method="dynaquant", config=config)
    return dq.load_file(folder / "a.dq")["a.weight"]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("spread", [0.001, 0.003, 0.01, 0.03])
@pytest.mark.parametrize("mean", [0.7, 1.0, 1.005, -5.0])
def test_a_matrix_far_from_zero_keeps_what_tells_its_values_apart(tmp_path, mean, spread, config):
    exact = mean + spread * normal(128, 128)
    assert error(saved(exact, config, tmp_path), exact) <= ERROR_CAP / config.bins


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("other", [0.0, -1.0, 30.0])
def test_a_row_elsewhere_does_not_hide_how_close_the_others_are(tmp_path, other, config):
    """Against the spread of the whole matrix nothing seemed to be lost."""
    exact = 1.004 + 0.001 * normal(128, 64)
    exact[3] = other
    found = saved(exact, config, tmp_path)
    rows = torch.arange(128) != 3
    assert error(found[rows], exact[rows]) <= ERROR_CAP / config.bins


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGS)
def test_lengths_of_a_weight_normalisation_along_restores(tmp_path, config, dtype):
    """As `parametrizations.weight_norm` makes them of a layer: 0.577, give or take a hundredth."""
    exact = (0.577 * (1 + 0.008 * normal(768, 1))).to(dtype)
    body = normal(96, 96)
    for step in range(5):
        run = dq.CheckpointStore(tmp_path, method="dynaquant")
        if step:
            begun = run.load()
            move = 0.002 * normal(768, 1, seed=step)
            exact, body = (begun["g.original0"] + move.to(dtype)), begun["v"] + 0.01 * normal(96, 96)
        run.save(step, {"g.original0": exact, "v": body}, config=config)
        found = dq.CheckpointStore(tmp_path, method="dynaquant").load()["g.original0"]
        assert error(found, exact) <= ERROR_CAP / config.bins


def test_a_matrix_that_draws_together_goes_into_words_and_back():
    """A draft says what it costs, a delta stands on either, and a chain made a key again decodes the same."""
    method, ref = DynaQuant(), None
    for step, spread in enumerate((0.3, 0.01, 0.01, 0.3)):
        state = {"w": 1 + spread * normal(256, 256, seed=step // 2 * 2), "b": normal(256, 256, seed=step)}
        draft = method.draft(state, ref, dq.Config(), Hints())
        announced = draft.size
        seen, held, ref, table = store(method, state, ref, dq.Config())
        assert abs(announced - table.nbytes) <= 0.02 * table.nbytes + 64
        assert torch.equal(seen["w"], state["w"]) == (spread == 0.01)
        assert_same(seen, ref.state())
        assert_same(seen, held.state())
        again = method.decode(StreamTable(method.rekey(held), state), None)
        assert_same(seen, again.state())


def test_ordinary_matrices_beside_it_stay_codes(tmp_path):
    state = {"w": 1 + 0.01 * normal(64, 64), "b": normal(512, 512), "c.weight": normal(300, 300) ** 5}
    for config in CONFIGS:
        dq.save_file(state, tmp_path / "a.dq", method="dynaquant", config=config)
        assert (tmp_path / "a.dq").stat().st_size < 4 * 64 * 64 + 0.9 * (512 * 512 + 300 * 300)


def test_equal_values_beside_others_stay_codes(tmp_path):
    """Few of those share their bucket, and rounding of a sum is no spread."""
    exact = torch.full((300, 300), 0.1)
    exact[::25] = normal(12, 300)
    dq.save_file({"w": exact}, tmp_path / "w.dq", method="dynaquant", config=dq.Config(bins=64))
    assert (tmp_path / "w.dq").stat().st_size < 300 * 300 / 8
    found = dq.load_file(tmp_path / "w.dq")["w"]
    assert torch.allclose(found[exact == 0.1], exact[exact == 0.1], rtol=1e-4)


def test_the_published_profile_codes_it_as_published(tmp_path):
    exact = 1 + 0.01 * normal(128, 128)
    method = {"name": "dynaquant", "profile": "paper"}
    dq.save_file({"w": exact}, tmp_path / "w.dq", method=method, config=dq.Config(bins=16))
    assert dq.load_file(tmp_path / "w.dq")["w"].unique().numel() < 100


@pytest.mark.parametrize("prune", [0.1, 0.3])
@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_pruning_takes_little_of_what_tells_values_apart(tmp_path, spread, prune):
    """A fiftieth of the energy about zero was more than all of the energy about one."""
    exact = 1 + spread * normal(128, 128)
    config = dq.Config(bins=16, prune=prune, protect=0.0)
    dq.save_file({"w": exact}, tmp_path / "w.dq", method="dynaquant", config=config)
    assert error(dq.load_file(tmp_path / "w.dq")["w"], exact) <= ((ERROR_CAP / 16) ** 2 + 0.02) ** 0.5
