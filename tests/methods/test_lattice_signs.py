"""What is positive comes back positive: factors, variances and transition matrices, through restores."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dynaquant_core as dq
from dynaquant_core.coding import encode_smallest
from dynaquant_core.config import LatticeConfig
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.methods.lattice.layout import BF16, EDGED, EXACT, KEPT, NEW, Layout, Row
from tests.methods.streams import StreamTable, assert_same, hostile, store

LATTICE = Lattice()
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def saved(state, ref, scale=0.5, hints=None):
    return store(LATTICE, state, ref, LatticeConfig(scale=scale), hints or Hints())


def transitions(dtype, seed=0):
    """A matrix whose rows sum to one, and a vector of variances."""
    drawn = torch.Generator().manual_seed(seed)
    matrix = torch.softmax(2 * torch.randn(64, 64, generator=drawn), 1).to(dtype)
    return {
        "chain": matrix,
        "minus": -matrix.t().contiguous(),
        "var": torch.rand(99, generator=drawn).to(dtype),
    }


def with_words(streams, words):
    """The same streams with other edges."""
    table = StreamTable([], {})
    table.specs, table.rows = streams.specs, dict(streams.rows)
    table.rows["", "edges"] = encode_smallest(np.array(words, np.uint16), None, ("raw",))
    return table


def signs_kept(state, read):
    return all(torch.equal(read[name].sign(), tensor.sign()) for name, tensor in state.items())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.02, 0.1, 0.5, 2.0])
def test_signs_stay_through_a_chain_with_restores(dtype, scale):
    state, ref = transitions(dtype), None
    for number in range(6):
        seen, held, read, _ = saved(state, ref, scale)
        assert_same(seen, read.state())
        assert signs_kept(state, read.state())
        again = number in {1, 3}
        ref = read if again else held
        state = read.state() if again else state
        for name in ("chain", "minus"):
            if number != 2:  # at times nothing moves
                state[name] = (state[name].float() * (1 + 0.2 * torch.rand(64, 64))).to(dtype)
    rekeyed = LATTICE.decode(StreamTable(LATTICE.rekey(ref), state), None)
    assert_same(rekeyed.state(), ref.state())


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_restored_and_frozen_costs_nothing_and_stays(dtype):
    state = transitions(dtype)
    ref = saved(state, None)[2]
    for _ in range(3):
        state = ref.state()
        _, _, ref, streams = saved(state, ref)
        assert_same(ref.state(), state)
        assert not any(kind in {"residuals", "values"} for _, kind in streams.rows)


def test_no_value_comes_nearer_to_zero_than_the_nearest_but_by_a_rounding():
    """Variances that a run clamps stay where it clamped them, within the 8 bits that say where."""
    state = {"var": torch.rand(40, 50).clamp(min=1e-2)}
    read = saved(state, None, 2.0)[2].state()["var"]
    assert (read >= 1e-2 * (1 - 2**-7)).all()
    assert (read - state["var"]).abs().max() <= saved(state, None, 2.0)[2].tensors["var"].step / 2


@given(st.integers(-1070, -1), st.sampled_from([1.0, -1.0]))
@settings(max_examples=60, deadline=None)
def test_nothing_positive_is_so_small_that_it_becomes_zero(power, sign):
    state = {"w": sign * torch.rand(32, 32, dtype=torch.float64)}
    state["w"][3, 4] = sign * math.ldexp(1.0, power)
    assert signs_kept(state, saved(state, None)[2].state())


def test_with_zeros_among_them_none_becomes_negative():
    state = {"w": torch.rand(60, 60), "v": torch.rand(60)}
    state["w"][5, 7] = state["v"][3] = 0
    for sign in (1, -1):
        read = saved({name: sign * tensor for name, tensor in state.items()}, None)[2].state()
        assert all((sign * tensor >= 0).all() for tensor in read.values())


def test_a_positive_matrix_that_is_pruned_keeps_signs_and_mask():
    """Its zeros are said, so the others may not become zeros either; nor may those beside a padding row."""
    weights = torch.rand(60, 60) * (torch.rand(60, 60) < 0.5)
    padded = torch.rand(60, 60)
    padded[4] = 0
    state, ref = {"w": weights, "padded": padded}, None
    for _ in range(3):
        ref = saved(state, ref)[2]
        assert signs_kept(state, ref.state())
        state = {name: tensor * (1 + 0.1 * torch.rand(60, 60)) for name, tensor in ref.state().items()}


def test_a_convolution_that_keeps_its_norm_keeps_its_signs():
    weights = torch.rand(64, 16, 3, 3)
    hints = Hints(layer_types={"conv.weight": "convolution"}, roles={"bn.running_var": "exact"})
    state, ref = {"conv.weight": weights}, None
    for _ in range(3):
        ref = store(LATTICE, state, ref, LatticeConfig(scale=0.8), hints)[2]
        assert ref.tensors["conv.weight"].factor < 1
        assert signs_kept(state, ref.state())
        state = ref.state()
    moved = {"conv.weight": state["conv.weight"] * 1.5}
    assert signs_kept(moved, store(LATTICE, moved, ref, LatticeConfig(scale=0.8), hints)[2].state())


def test_values_of_both_signs_and_those_far_from_zero_take_no_byte():
    """A norm's weights lie about one: no cell reaches zero, and what is decoded has no direction."""
    state = {"w": torch.randn(64, 64), "norm": 1 + 0.1 * torch.randn(500)}
    _, _, read, streams = saved(state, None)
    assert ("", "edges") not in streams.rows
    assert all(own.edge is None for own in read.tensors.values())


def test_edges_that_no_writer_says_are_refused():
    streams = saved({"w": torch.rand(64, 64), "v": torch.randn(64, 64)}, None)[3]
    for word in (0x7F80, 0xFF80, 0x7FC0, 0x0001, 0x807F):  # infinities, no number, subnormal ones
        with pytest.raises(CorruptFileError, match="edges stream"):
            LATTICE.decode(with_words(streams, [word]), None)
    for words in ([], [0, 0]):
        with pytest.raises(CorruptFileError, match="stream has"):
            LATTICE.decode(with_words(streams, words), None)
    for word, holds in ((0x0000, lambda w: (w >= 0).all()), (0x8000, lambda w: (w <= 0).all())):
        assert holds(LATTICE.decode(with_words(streams, [word]), None).state()["w"])
    del streams.rows["", "edges"]
    with pytest.raises(CorruptFileError, match="edges"):
        LATTICE.decode(streams, None)


@pytest.mark.parametrize("kind", [BF16, EXACT])
def test_a_tensor_in_words_has_no_edge(kind):
    streams = StreamTable(Layout(1, None, 0.5, [Row(kind, edge=0.5)], [0]).streams(), {"w": torch.zeros(9)})
    with pytest.raises(CorruptFileError, match="no way to hold a tensor"):
        LATTICE.decode(streams, None)


def test_a_reader_of_before_refuses_what_it_would_misread():
    (layout, _) = Layout(1, None, 0.5, [Row(KEPT, edge=0.5), Row(NEW, 0.5, edge=-0.0)], [0]).streams()
    assert bytes(layout.payload)[17:19] == bytes([KEPT + EDGED, NEW + EDGED])


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_hostile_bytes(data):
    state = transitions(torch.float32)
    ref = saved(state, None)[1]
    table = hostile(data, saved({name: 1.1 * tensor for name, tensor in state.items()}, ref)[3])
    try:
        found = LATTICE.decode(table, ref).state()
    except CorruptFileError:
        return
    assert all(found[name].shape == tensor.shape for name, tensor in state.items())
    assert all(tensor.isfinite().all() for tensor in found.values())


class Factors(nn.Module):
    """Rates of counts as a product of positive factors."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.rand(120, 6))
        self.columns = nn.Parameter(torch.rand(90, 6))

    def forward(self) -> torch.Tensor:
        return self.rows @ self.columns.t()


@pytest.mark.parametrize("measured", [False, True])
def test_a_factorisation_with_positive_factors_goes_on_after_restores(tmp_path: Path, measured: bool) -> None:
    """It takes the root of its rates, whose factors it clamps after every step."""
    drawn = torch.Generator().manual_seed(0)
    true = [torch.rand(count, 6, generator=drawn) ** 6 * 3 for count in (120, 90)]
    counts = [torch.poisson(true[0] @ true[1].t(), generator=drawn) for _ in range(2)]

    def loss(model: nn.Module, seen: torch.Tensor) -> torch.Tensor:
        return (model().sqrt() - (seen + 0.375).sqrt()).square().mean()

    for begun in (0, 40, 80):
        torch.manual_seed(1)
        model = Factors()
        optimizer = torch.optim.Adam(model.parameters(), 2e-2)

        def evaluate(model: nn.Module = model) -> float:
            return float(loss(model, counts[1]))

        checked = evaluate if measured else None
        with dq.Checkpointer(tmp_path / "run", model, optimizer, every=20, evaluate=checked) as checkpoints:
            assert checkpoints.restore() == begun
            assert all((own > 0).all() for own in model.parameters())
            for _ in range(40):
                optimizer.zero_grad()
                now = loss(model, counts[0])
                now.backward()
                optimizer.step()
                with torch.no_grad():
                    for own in model.parameters():
                        own.clamp_(min=1e-8)
                checkpoints.step()
            assert now.isfinite()


def test_one_file_keeps_what_has_a_logarithm(tmp_path: Path) -> None:
    state = transitions(torch.float32)
    dq.save_file({"chain": state["chain"]}, tmp_path / "a.dq")
    assert dq.load_file(tmp_path / "a.dq")["chain"].log().isfinite().all()
    into = {"chain": torch.zeros(64, 64)}
    dq.CheckpointStore(tmp_path / "run").save(0, {"chain": state["chain"]})
    dq.CheckpointStore(tmp_path / "run").load_into(into)
    assert (into["chain"] > 0).all()
