"""CNR+: a searched range beats the full one, codes of fixed width, nothing builds on a base."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.errors import ConfigError, CorruptFileError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.cnr import Cnr, CnrConfig
from dynaquant_core.methods.qd import Qd, QdConfig
from tests.methods.conftest import layers, trained
from tests.methods.memory import Memory
from tests.methods.streams import assert_same, store

CNR, HUFFMAN = Cnr(), Cnr(coder="huffman")


def loss(seen, state):
    return {name: float((seen[name].double() - state[name].double()).square().mean()) for name in state}


@pytest.mark.parametrize("bins", [8, 16, 64, 256])
def test_the_searched_range_is_no_worse_than_the_full_one(bins):
    state = layers()
    whole = loss(store(Qd(), state, None, QdConfig(maximum=bins, minimum=bins))[0], state)
    found = loss(store(CNR, state, None, CnrConfig(bins=bins))[0], state)
    assert all(found[name] <= whole[name] * (1 + 1e-6) for name in state)
    if bins <= 16:
        assert all(found[name] < 0.9 * whole[name] for name in state)


def test_more_search_is_never_worse():
    state = layers()
    losses = [
        loss(store(CNR, state, None, CnrConfig(bins=8, shrink=s))[0], state) for s in (0.5, 0.3, 0.1, 0)
    ]
    for better, worse in pairwise(losses):
        assert all(better[name] <= worse[name] * (1 + 1e-6) for name in state)


@pytest.mark.parametrize(("bins", "width"), [(8, 3), (9, 4), (64, 6), (128, 7), (256, 8)])
def test_the_ratio_is_the_width(bins, width):
    """As published: 32 / 6 = 5.33 and 32 / 7 = 4.57."""
    state = {"w": torch.randn(100, 100)}
    _, _, _, table = store(CNR, state, None, CnrConfig(bins=bins))
    assert table.nbytes == 10_000 * width // 8 + 12 + 1


def test_huffman_writes_the_same_codes_in_fewer_bytes():
    state = layers()
    seen, _, _, packed = store(CNR, state, None, CnrConfig(bins=64))
    other, _, read, coded = store(HUFFMAN, state, None, CnrConfig(bins=64))
    assert_same(seen, other)
    assert_same(seen, read.state())
    assert coded.nbytes < packed.nbytes
    assert_same(CNR.decode(coded, None).state(), seen)


def test_under_huffman_a_bolder_range_search_is_no_larger():
    state = {"w": torch.randn(100, 100, generator=torch.Generator().manual_seed(0))}
    sizes = [store(HUFFMAN, state, None, CnrConfig(bins=16, shrink=s))[3].nbytes for s in (0.5, 0.3, 0.1)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]


def test_no_checkpoint_needs_another(chain):
    ref = None
    for state in chain:
        draft = CNR.draft(state, ref, CnrConfig(bins=16), Hints())
        assert draft.is_key
        seen, ref, read, table = store(CNR, state, ref, CnrConfig(bins=16))
        assert_same(seen, read.state())
        assert_same(seen, CNR.decode(table, None).state())


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
    st.integers(-8, 8),
    st.integers(2, 256),
    st.sampled_from([2, 10, 100]),
)
def test_any_dtype_comes_back_between_its_ends(dtype, scale, bins, step_bins):
    tensor = (torch.randn(16, 20, generator=torch.Generator().manual_seed(bins)) * 2.0**scale).to(dtype)
    seen, _, read, _ = store(CNR, {"w": tensor}, None, CnrConfig(bins=bins, step_bins=step_bins))
    assert_same(seen, read.state())
    assert tensor.min() <= seen["w"].min() <= seen["w"].max() <= tensor.max()
    assert seen["w"].unique().numel() <= bins


def test_a_packed_code_without_a_level_is_refused():
    state = {"w": torch.randn(20, 20)}
    _, _, _, source = store(CNR, state, None, CnrConfig(bins=9))
    table = Memory(state, [])
    table.rows = source.rows | {("w", "packed"): (0, b"\xff" * 200)}
    with pytest.raises(CorruptFileError, match="code 15 of 9"):
        CNR.decode(table, None)


def test_the_space():
    """Under Huffman as published; packed, the two axes that change no byte stay at their most careful."""
    assert CNR.space(gradients=False).axes == {"bins": (256, 128, 64, 32, 16, 8)}
    assert CNR.space(gradients=False).build(bins=8) == CnrConfig(bins=8, step_bins=100, shrink=0.5)
    space = HUFFMAN.space(gradients=False)
    assert space.axes == {
        "bins": (256, 128, 64, 32, 16, 8),
        "step_bins": (100, 50, 25, 10),
        "shrink": (0.5, 0.4, 0.3, 0.2, 0.1),
    }
    assert space.beyond[-1].exact


@pytest.mark.parametrize(
    "data",
    [
        {"bins": 1},
        {"bins": 257},
        {"bins": 8.0},
        {"step_bins": 1},
        {"shrink": 1.0},
        {"range": 0.5},
        {"exact": 2},
    ],
)
def test_bad_points(data):
    with pytest.raises(ConfigError, match=next(iter(data))):
        CNR.config(data)


def test_bad_options():
    with pytest.raises(ConfigError, match="coder"):
        Cnr(coder="rans")


def test_a_moved_state_is_coded_afresh():
    state = layers()
    _, held, _, _ = store(CNR, state, None, CnrConfig(bins=16))
    moved = trained(state)
    assert_same(
        store(CNR, moved, held, CnrConfig(bins=16))[0], store(CNR, moved, None, CnrConfig(bins=16))[0]
    )
