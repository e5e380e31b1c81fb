"""GOBO+: outliers bit for bit, the rest on centres, a time limit that is kept and said."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from dynaquant_core.errors import ConfigError, CorruptFileError
from dynaquant_core.methods.allowance import Allowance
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.gobo import Gobo, GoboConfig
from dynaquant_core.quantize.outliers import outliers
from dynaquant_core.state import words_of
from tests.methods.conftest import layers, trained
from tests.methods.memory import Memory
from tests.methods.streams import assert_same, store

GOBO, HUFFMAN = Gobo(), Gobo(coder="huffman")


def heavy(dtype=torch.float32):
    """A layer with outliers, and one that is nothing else."""
    generator = torch.Generator().manual_seed(3)
    tails = torch.randn(60, 50, generator=generator) * 0.05
    tails.view(-1)[::97] *= 20
    return {"tails": tails.to(dtype), "wide": (torch.randn(20, 20, generator=generator) * 100).to(dtype)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_outliers_come_back_bit_for_bit(dtype):
    state = heavy(dtype)
    seen, _, read, table = store(GOBO, state, None, GoboConfig(bins=8))
    assert_same(seen, read.state())
    for name, tensor in state.items():
        far = outliers(tensor.float().numpy().reshape(-1))
        np.testing.assert_array_equal(words_of(seen[name])[far], words_of(tensor)[far])
        assert far.any()
        assert np.unique(words_of(seen[name])[~far]).size <= 8
    assert not ({("wide", "centres"), ("wide", "packed")} & set(table.rows))
    assert torch.equal(seen["wide"], state["wide"])


def test_more_centres_lose_less():
    state = layers()
    losses = []
    for bins in (8, 16, 64, 256):
        seen, _, _, _ = store(GOBO, state, None, GoboConfig(bins=bins, embedding_bins=bins))
        losses.append({name: float((seen[name] - state[name]).abs().mean()) for name in state})
    for name in state:
        found = [loss[name] for loss in losses]
        assert found == sorted(found, reverse=True)
        assert found[-1] < 0.1 * found[0]


def test_embeddings_have_centres_of_their_own():
    state = layers()
    _, held, _, _ = store(GOBO, state, None, GoboConfig(bins=8, embedding_bins=16))
    assert {name: layer.centres.size for name, layer in held.tensors.items()} == {
        name: 16 if name == "wte.weight" else 8 for name in state
    }
    told = Hints(layer_types={name: "embedding" if name == "mlp.0.weight" else "linear" for name in state})
    _, held, _, _ = store(GOBO, state, None, GoboConfig(bins=8, embedding_bins=16), told)
    assert held.tensors["mlp.0.weight"].centres.size == 16
    assert held.tensors["wte.weight"].centres.size == 8


@pytest.mark.parametrize("method", [GOBO, HUFFMAN])
def test_no_checkpoint_needs_another(chain, method):
    ref = None
    for state in chain:
        assert method.draft(state, ref, GoboConfig(bins=16), Hints()).is_key
        seen, ref, read, table = store(method, state, ref, GoboConfig(bins=16))
        assert_same(seen, read.state())
        assert_same(seen, GOBO.decode(table, None).state())


def test_size_is_near_the_width():
    state = {"w": torch.randn(300, 300, generator=torch.Generator().manual_seed(0)) * 0.02}
    _, _, _, table = store(GOBO, state, None, GoboConfig(bins=8))
    assert 90_000 * 3 / 8 < table.nbytes < 1.1 * 90_000 * 3 / 8


def test_a_used_up_allowance_keeps_the_start_and_is_said_once(caplog):
    state = layers()
    scarce = Gobo(time_limit=0)
    hints = Hints()
    with caplog.at_level(logging.WARNING):
        seen, _, read, _ = store(scarce, state, None, GoboConfig(bins=8), hints)
        again, _, _, _ = store(scarce, state, None, GoboConfig(bins=8), hints)
        store(scarce, state, None, GoboConfig(bins=16), hints)
    assert_same(seen, read.state())
    assert_same(seen, again)
    assert [record.name for record in caplog.records] == ["dynaquant_core.methods.gobo"]
    assert "time_limit" in caplog.text
    better, _, _, _ = store(GOBO, state, None, GoboConfig(bins=8))
    for name, tensor in state.items():
        assert (better[name] - tensor).abs().mean() <= (seen[name] - tensor).abs().mean()


def test_every_save_has_an_allowance_of_its_own(caplog):
    scarce = Gobo(time_limit=0)
    for _ in range(2):
        store(scarce, layers(), None, GoboConfig(bins=8))
    assert len(caplog.records) == 2


def test_candidates_of_a_save_share_centres():
    """Whatever time does in between, a candidate that is drafted again is the same."""
    state, hints = layers(), Hints()
    first, _, _, _ = store(GOBO, state, None, GoboConfig(bins=16), hints)
    shared = hints.scratch["gobo", "shared"]
    hints.scratch["gobo", "shared"] = replace(shared, allowance=Allowance(0.0, lambda: None))
    again, _, _, _ = store(GOBO, state, None, GoboConfig(bins=16), hints)
    assert_same(first, again)


def test_an_allowance_is_charged_by_all_and_told_once():
    told = []
    allowance = Allowance(1e6, lambda: told.append(1))
    timers = [allowance.timer() for _ in range(3)]
    assert all(timer() for timer in timers)
    assert not told
    never = Allowance(0.0, lambda: told.append(2))
    timers = [never.timer() for _ in range(3)]
    assert not any(timer() for timer in timers)
    assert told == [2]


@pytest.mark.parametrize("centres", [[], [float("nan")] * 8, [0.0] * 257, [0.0, 1.0]])
def test_damaged_centres(centres):
    state = {"w": torch.randn(20, 20) * 0.01}
    _, _, _, source = store(HUFFMAN, state, None, GoboConfig(bins=8))
    table = Memory(state, [])
    table.rows = source.rows | {("w", "centres"): (0, np.float32(centres).tobytes())}
    with pytest.raises(CorruptFileError):
        HUFFMAN.decode(table, None)


def test_the_space():
    space = GOBO.space(gradients=False)
    assert space.axes == {"bins": (256, 128, 64, 32, 16, 8)}
    assert space.refine == {"embedding_bins": (32, 16)}
    assert space.beyond[-1].exact


@pytest.mark.parametrize(
    "data", [{"bins": 1}, {"bins": True}, {"embedding_bins": 300}, {"exact": 2}, {"bin": 8}]
)
def test_bad_points(data):
    with pytest.raises(ConfigError, match=next(iter(data))):
        GOBO.config(data)


@pytest.mark.parametrize("options", [{"coder": "rans"}, {"time_limit": -1}, {"time_limit": "long"}])
def test_bad_options(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        Gobo(**options)


def test_a_moved_state_is_coded_afresh():
    state = layers()
    _, held, _, _ = store(GOBO, state, None, GoboConfig(bins=16))
    moved = trained(state)
    assert_same(
        store(GOBO, moved, held, GoboConfig(bins=16))[0], store(GOBO, moved, None, GoboConfig(bins=16))[0]
    )
