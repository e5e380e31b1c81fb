"""SCAR: the partitions that are saved are exact, the rest is as it was, in the order that was asked for."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
import torch

from dynaquant_core.errors import ConfigError, CorruptFileError, MissingBaseError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.scar import ROW, Scar
from dynaquant_core.methods.share import ShareConfig
from tests.methods.conftest import layers
from tests.methods.memory import Memory
from tests.methods.streams import assert_same, store

SCAR, TURN = Scar(), Scar(order="turn")
TENTH = ShareConfig(share=0.1)


def partitions(tensor):
    return list(tensor.reshape(-1).split(ROW))


def saved(before, after, live):
    """(partitions that equal the live ones, those that are as before, all) over the model."""
    fresh = stale = every = 0
    for name in live:
        for old, new, now in zip(*(partitions(state[name]) for state in (before, after, live)), strict=True):
            fresh += torch.equal(new, now)
            stale += torch.equal(new, old)
            every += 1
    return fresh, stale, every


@pytest.mark.parametrize("method", [SCAR, TURN])
@pytest.mark.parametrize("share", [0.5, 0.05])
def test_a_share_of_the_partitions_is_saved_and_the_rest_stays(chain, method, share):
    _, _, ref, _ = store(method, chain[0], None, ShareConfig(share=share))
    assert_same(ref.state(), chain[0])
    for state in chain[1:]:
        before = ref.state()
        seen, held, ref, _ = store(method, state, ref, ShareConfig(share=share))
        assert_same(seen, ref.state())
        assert_same(held.state(), ref.state())
        fresh, stale, every = saved(before, ref.state(), state)
        assert fresh == ceil(share * every)
        assert fresh + stale == every


def test_priority_takes_the_largest_change_of_the_whole_model(chain):
    _, _, ref, _ = store(SCAR, chain[0], None, TENTH)
    before = ref.state()
    _, _, ref, _ = store(SCAR, chain[1], ref, TENTH)
    moved = {True: [], False: []}
    for name, live in chain[1].items():
        for old, new, now in zip(*map(partitions, (before[name], ref.state()[name], live)), strict=True):
            moved[torch.equal(new, now)].append(float((now - old).double().square().sum()))
    assert min(moved[True]) >= max(moved[False])


def test_turns_reach_every_partition_once_a_round(chain):
    share, state = 0.3, chain[0]
    _, _, ref, _ = store(TURN, state, None, ShareConfig(share=share))
    goal = {name: tensor + 1 for name, tensor in state.items()}
    fresh = 0
    for _ in range(ceil(1 / share)):
        _, _, ref, _ = store(TURN, goal, ref, ShareConfig(share=share))
        found, _, every = saved(state, ref.state(), goal)
        assert found == min(fresh + ceil(share * every), every)
        fresh = found
    assert_same(ref.state(), goal)


def test_a_restored_run_takes_up_its_turns(chain):
    """What a reader decoded and what the writer kept lead to the same bytes."""
    written = read = None
    for state in chain:
        _, _, _, left = store(TURN, state, written, TENTH)
        _, written, read, right = store(TURN, state, read, TENTH)
        assert left.rows == right.rows


def test_a_saved_share_costs_its_share():
    state = {"w.weight": torch.randn(400, 256)}
    _, _, ref, key = store(SCAR, state, None, TENTH)
    moved = {"w.weight": state["w.weight"] + 0.05 * torch.randn(400, 256)}
    _, _, _, delta = store(SCAR, moved, ref, TENTH)
    assert delta.nbytes < 0.1 * key.nbytes
    _, _, _, still = store(SCAR, state, ref, TENTH)
    assert still.nbytes < 16


def test_the_space_is_the_share():
    space = SCAR.space(gradients=False)
    assert space.axes == {"share": (1.0, 0.5, 0.2, 0.1, 0.05)}
    assert space.beyond[-1].exact


def test_what_is_refused(chain):
    for share in (0, -0.1, 1.5, True, "half", float("nan")):
        with pytest.raises(ConfigError, match="share must be a number"):
            ShareConfig(share=share)
    with pytest.raises(ConfigError, match="order"):
        Scar(order="random")
    _, _, ref, _ = store(SCAR, chain[0], None, TENTH)
    table = Memory(chain[1], SCAR.draft(chain[1], ref, TENTH, Hints()).encode()[0])
    with pytest.raises(MissingBaseError, match="no base holds it"):
        SCAR.decode(table, None)
    name = "mlp.2.weight"
    with pytest.raises(CorruptFileError):
        SCAR.decode(table.with_row((name, "rows"), 0, b""), ref)
    most = np.full(8, 255, np.uint8).tobytes()  # 64 partitions, more than there are words of
    with pytest.raises(CorruptFileError):
        SCAR.decode(table.with_row((name, "rows"), 0, most), ref)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_floating_dtype(dtype):
    state = layers(dtype=dtype)
    _, _, ref, _ = store(SCAR, state, None, TENTH)
    goal = {name: tensor * 2 for name, tensor in state.items()}
    seen, _, read, _ = store(SCAR, goal, ref, TENTH)
    assert_same(seen, read.state())
    fresh, stale, every = saved(state, read.state(), goal)
    assert fresh >= ceil(0.1 * every)
    assert fresh + stale >= every
