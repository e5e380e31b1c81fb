"""TOPN: exactly the entries that moved most are exact, wherever in the model they are."""

from __future__ import annotations

from math import ceil

import pytest
import torch

from dynaquant_core.errors import CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.share import ShareConfig
from dynaquant_core.methods.topn import TopN
from tests.methods.conftest import layers, trained
from tests.methods.memory import Memory
from tests.methods.streams import assert_same, store

TOPN = TopN()
TENTH = ShareConfig(share=0.1)


def flat(state):
    return torch.cat([tensor.reshape(-1).double() for tensor in state.values()])


@pytest.mark.parametrize("share", [0.5, 0.2, 0.05])
def test_the_entries_of_largest_change_are_exact_and_the_rest_stays(chain, share):
    _, _, ref, _ = store(TOPN, chain[0], None, ShareConfig(share=share))
    assert_same(ref.state(), chain[0])
    for state in chain[1:]:
        before = flat(ref.state())
        seen, held, ref, _ = store(TOPN, state, ref, ShareConfig(share=share))
        assert_same(seen, ref.state())
        assert_same(held.state(), ref.state())
        after, live = flat(ref.state()), flat(state)
        fresh = (after == live) & (before != live)
        assert int(fresh.sum()) == ceil(share * live.numel())
        assert torch.equal(after[~fresh], before[~fresh])
        moved = (live - before).abs().float()
        assert moved[fresh].min() >= moved[~fresh].max()


def test_entries_far_apart_and_side_by_side_come_back():
    """Gaps of 0, of more than 254 and of more than a symbol's range; rows without entries."""
    state = {"w.weight": torch.zeros(4, 70_000), "narrow.weight": torch.zeros(200, 3)}
    _, _, ref, _ = store(TOPN, state, None, TENTH)
    moved = {name: tensor.clone() for name, tensor in state.items()}
    for column in (0, 1, 2, 256, 257, 513, 69_999):
        moved["w.weight"][1, column] = 1.5
    moved["w.weight"][3, 69_999] = -2.0
    moved["narrow.weight"][[0, 5, 199]] = 1.0
    _, _, read, table = store(TOPN, moved, ref, TENTH)
    assert_same(read.state(), moved)
    assert table.nbytes < 1000
    assert ("w.weight", "far") in table.rows
    assert ("narrow.weight", "far") not in table.rows


def test_a_saved_entry_costs_its_value_and_a_gap():
    state = {"w.weight": torch.randn(400, 256)}
    _, _, ref, key = store(TOPN, state, None, TENTH)
    _, _, _, delta = store(TOPN, trained(state, 0.05), ref, TENTH)
    assert delta.nbytes < 0.14 * key.nbytes
    _, _, _, still = store(TOPN, state, ref, TENTH)
    assert still.nbytes < 16


@pytest.mark.parametrize(
    ("kind", "row", "words"),
    [
        ("rows", (9, b"\xff\xff"), "65535 entries in 256 columns"),
        ("rows", (9, b"\x01\x01"), "257 entries in 256 columns"),
        ("rows", (9, b"\x00\x01"), "'gaps' stream|codec|gaps|stream"),
        ("gaps", (9, b"\x7f"), "of a row of 256"),
        ("gaps", (9, b"\xff"), "no stream 'far'"),
        ("gaps", (0, b""), "0 bytes"),
        ("words", (0, b"\x00"), "1 bytes"),
    ],
)
def test_damaged_streams_are_refused(chain, kind, row, words):
    _, _, ref, _ = store(TOPN, chain[0], None, TENTH)
    table = Memory(chain[1], TOPN.draft(chain[1], ref, TENTH, Hints()).encode()[0])
    with pytest.raises(CorruptFileError, match=words):
        TOPN.decode(table.with_row(("mlp.2.weight", kind), *row), ref)
    with pytest.raises(MissingBaseError, match="no base holds it"):
        TOPN.decode(table, None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_floating_dtype(dtype):
    state = layers(dtype=dtype)
    _, _, ref, _ = store(TOPN, state, None, TENTH)
    goal = {name: tensor * 2 for name, tensor in state.items()}
    seen, _, read, _ = store(TOPN, goal, ref, TENTH)
    assert_same(seen, read.state())
    after, live = flat(read.state()), flat(goal)
    assert int((after == live).sum()) >= ceil(0.1 * live.numel())
    assert torch.equal(after[after != live], flat(state)[after != live])
