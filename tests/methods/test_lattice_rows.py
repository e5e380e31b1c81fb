"""Rows that no gradient reaches: a padding row stays zeros, an unused one what it was restored to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dynaquant_core as dq
from dynaquant_core.coding import codec_by_id, encode_smallest
from dynaquant_core.config import LatticeConfig
from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.methods.lattice.layout import STAYING
from tests.methods.streams import StreamTable, assert_same, store

LATTICE = Lattice()
HINTS = Hints(layer_types={"embed.weight": "embedding"})


def saved(state, ref, scale=0.5):
    return store(LATTICE, state, ref, LatticeConfig(scale=scale), Hints(layer_types=HINTS.layer_types))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@given(
    empty=st.sets(st.integers(0, 39), max_size=40),
    used=st.lists(st.sets(st.integers(0, 39)), min_size=5, max_size=5),
    restored=st.lists(st.booleans(), min_size=5, max_size=5),
)
@settings(max_examples=25, deadline=None)
def test_zeros_stay_zeros_and_what_was_restored_stays_where_nothing_moves_it(dtype, empty, used, restored):
    torch.manual_seed(0)
    state = {"embed.weight": torch.randn(40, 16).to(dtype), "w": torch.randn(30, 30).to(dtype)}
    state["embed.weight"][sorted(empty)] = 0
    ref, untouched = None, set()  # rows that are what a run was restored to
    for rows, again in zip(used, restored, strict=True):
        seen, held, read, _ = saved(state, ref)
        assert_same(seen, read.state())
        stored = read.state()["embed.weight"]
        assert not stored[sorted(empty)].view(torch.uint8).any()
        stay = sorted(untouched)
        assert torch.equal(stored[stay], state["embed.weight"][stay])
        ref = read if again else held
        if again:
            state, untouched = read.state(), set(range(40))
        moved = sorted(rows - empty)
        state["embed.weight"][moved] += torch.full((len(moved), 16), 0.05, dtype=dtype)
        untouched -= set(moved)


def test_rows_that_stay_cost_next_to_nothing_and_those_that_move_again_are_coded():
    torch.manual_seed(0)
    state = {"embed.weight": torch.randn(2000, 32)}
    _, _, read, key = saved(state, None)
    state = read.state()
    state["embed.weight"][:20] += 0.01
    _, held, _, streams = saved(state, read)
    assert streams.nbytes < key.nbytes / 50
    state["embed.weight"][1000:] += 0.3
    assert not torch.equal(saved(state, held)[2].state()["embed.weight"][1500], state["embed.weight"][1500])


def test_an_expert_that_nobody_asks_and_a_dead_unit_take_no_more_noise():
    """Under Adam without decay what has no gradient keeps every bit, so that noise would add up."""
    torch.manual_seed(0)
    state = {"experts.w1": torch.randn(4, 64, 32), "fc.weight": torch.randn(100, 40)}
    read = saved(state, None)[2]
    first = {name: tensor.clone() for name, tensor in read.state().items()}
    for _ in range(3):
        state = read.state()
        state["experts.w1"][1:] += 0.05 * torch.randn(3, 64, 32)
        state["fc.weight"][10:] += 0.05 * torch.randn(90, 40)
        seen, _, read, _ = saved(state, read)
        assert_same(seen, read.state())
        assert torch.equal(read.state()["experts.w1"][0], first["experts.w1"][0])
        assert torch.equal(read.state()["fc.weight"][:10], first["fc.weight"][:10])
        assert not torch.equal(read.state()["experts.w1"][1], state["experts.w1"][1])


@pytest.mark.parametrize("pad", [False, True])
def test_a_frozen_matrix_costs_a_key_its_cells_and_no_value(pad):
    """After an exact checkpoint all its rows are what was restored: it takes its noise once, as ever."""
    torch.manual_seed(0)
    state = {"frozen.weight": torch.randn(200, 64), "w": torch.randn(40, 40)}
    if pad:
        state["frozen.weight"][7] = 0
    read = saved(state, None, "exact")[2]
    state = read.state()
    sizes = []
    for _ in range(3):
        state["w"] += 0.05 * torch.randn(40, 40)
        _, held, _, delta = saved(state, read)
        hints = Hints(before=held)
        seen, _, read, key = store(LATTICE, state, None, LatticeConfig(scale=0.5), hints)
        assert_same(seen, read.state())
        sizes.append((delta.nbytes, key.nbytes))
        state = read.state()
    assert all(key < 200 * 64 for _, key in sizes), "eight bits a weight would be values"
    assert all(delta < key / 5 for delta, key in sizes[1:])


@pytest.mark.parametrize(
    ("marks", "error"),
    [([5], CorruptFileError), ([1], MissingBaseError), ([1, 3], CorruptFileError), ([3], CorruptFileError)],
)
def test_marks_that_no_writer_makes_are_refused(marks, error):
    state = {"embed.weight": torch.randn(40, 16)}
    state["embed.weight"][39] = 0
    streams = saved(state, None)[3]
    column = np.zeros(40, np.uint8)
    column[: len(marks)] = marks
    streams.rows["embed.weight", "still"] = encode_smallest(column)
    with pytest.raises(error, match=r"embed\.weight"):
        LATTICE.decode(streams, None)


@pytest.mark.parametrize(
    ("state", "scale", "what"),
    [
        ({"w": torch.randn(600)}, 0.5, "rows stay"),
        ({"w": torch.randn(30, 30)}, "exact", "no way to hold a tensor"),
        ({"w": torch.randn(30, 30)}, 0.5, "still"),
    ],
)
def test_a_layout_that_speaks_of_rows_where_there_are_none_is_refused(state, scale, what):
    streams = saved(state, None, scale)[3]
    layout = np.empty(17 + 4 + 1, np.uint8)
    codec, payload = streams.get("", "layout")
    codec_by_id(codec).decode(payload, layout)
    layout[17] += STAYING
    streams.rows["", "layout"] = encode_smallest(layout, None, ("raw",))
    with pytest.raises(CorruptFileError, match=what):
        LATTICE.decode(streams, None)


def test_a_key_made_of_a_delta_gives_the_rows():
    torch.manual_seed(0)
    state = {"embed.weight": torch.randn(40, 16)}
    state["embed.weight"][3] = 0
    read = saved(state, None)[2]
    state = read.state()
    state["embed.weight"][10] += 1
    later = saved(state, read)[2]
    again = LATTICE.decode(StreamTable(LATTICE.rekey(later), state), None)
    assert_same(again.state(), later.state())
    state["embed.weight"][11] += 1
    assert saved(state, again)[3].rows.keys() == saved(state, later)[3].rows.keys()


def test_a_padding_row_is_zeros_after_every_restore(tmp_path: Path) -> None:
    drift, first, step = [], None, 0
    for _ in range(4):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(60, 16, padding_idx=0), nn.Linear(16, 60))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        with dq.Checkpointer(tmp_path / "run", model, optimizer, every=5) as checkpoints:
            step = checkpoints.restore()
            table = model[0].weight
            assert not table[0].detach().any()
            drift.append(table[40:].detach().clone())
            first = drift[0] if first is None else first
            for number in range(10):
                tokens = torch.randint(1, 40, (8, 6), generator=torch.Generator().manual_seed(step + number))
                tokens[:, 4:] = 0
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                checkpoints.step()
    assert step == 30
    assert not torch.equal(drift[1], drift[0])  # on the lattice, as the rest
    assert torch.equal(drift[3], drift[1])  # and not moved again by restores that follow


def lives(between: list[object], *, count: int = 4, idle: bool = False) -> list[torch.Tensor]:
    """An embedding of which half the rows are trained, after each of some lives; a save at each scale."""
    torch.manual_seed(0)
    state = {"embed.weight": torch.randn(200, 32), "fc.weight": torch.randn(60, 60)}
    read, seen = saved(state, None)[2], []
    for _ in range(count):
        state, ref = read.state(), read
        for number, scale in enumerate(between):
            if number or not idle:
                state["embed.weight"][:100] += 0.05 * torch.randn(100, 32)
            state["fc.weight"] += 0.05 * torch.randn(60, 60)
            shown, ref, read, _ = saved(state, ref, scale)
            assert_same(shown, read.state())
            assert_same(read.state(), ref.state())
        seen.append(read.state()["embed.weight"][100:])
    return seen


@pytest.mark.parametrize(
    "between",
    [
        (0.5, "exact", 0.5),
        (0.5, "bf16", 0.5),
        ("exact", 0.5),
        ("bf16", "bf16", 0.5, 0.4),
        ("bf16", "exact", 0.3),
    ],
)
def test_a_save_beyond_the_lattice_brings_rows_without_gradient_no_noise(between):
    """Nor does it make the next one forget which they were."""
    seen = lives(between)
    assert all(torch.equal(rows, seen[0]) for rows in seen)


@pytest.mark.parametrize("between", [(0.5, 0.5, 1.0), (0.5, 0.5, 0.2), ("exact", 0.5), ("bf16", 0.5, 0.5)])
def test_a_table_that_is_still_at_first_brings_its_unused_rows_no_noise_later(between):
    seen = lives(between, idle=True)
    assert all(torch.equal(rows, seen[0]) for rows in seen)


def test_rows_that_end_a_life_in_bfloat16_are_rounded_once():
    seen = lives((0.5, "bf16"))
    assert torch.equal(seen[0], seen[0].bfloat16().float())
    assert all(torch.equal(rows, seen[0]) for rows in seen)


def test_a_chain_that_goes_back_to_a_link_beyond_the_lattice_knows_its_rows(tmp_path: Path) -> None:
    """A full chain builds on a link in its middle again, read from its file, which does not say so."""
    torch.manual_seed(0)
    weights = {"embed.weight": torch.randn(200, 32), "fc.weight": torch.randn(60, 60)}
    with dq.CheckpointStore(tmp_path, max_chain=4) as store:
        store.save(0, {"model": weights}, config=LatticeConfig(scale=0.5))
    with dq.CheckpointStore(tmp_path, max_chain=4) as store:
        weights = store.resume()["model"]
        first = weights["embed.weight"][100:].clone()
        for step in range(1, 6):
            weights["embed.weight"][:100] += 0.05 * torch.randn(100, 32)
            store.save(step, {"model": weights}, config=LatticeConfig(scale="exact" if step == 2 else 0.5))
        assert store.info(5).base_step == 2
    assert torch.equal(dq.CheckpointStore(tmp_path).load()["model"]["embed.weight"][100:], first)
