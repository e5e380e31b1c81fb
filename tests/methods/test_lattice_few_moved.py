"""Large tensors of which few weights moved: flags and few residuals say what one for each weight would."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.config import LatticeConfig
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice import Lattice, draft, moved_kernels
from dynaquant_core.methods.lattice.contexts import FEW_MOVED
from dynaquant_core.methods.lattice.kept import IMPOSSIBLE
from dynaquant_core.methods.lattice.layout import KEPT, NEW, Layout, Row
from dynaquant_core.state import TensorSpec
from tests.methods.conftest import trained
from tests.methods.streams import StreamTable, hostile, store
from tests.reference import lattice_moved as twins

EXAMPLES = settings(max_examples=80, deadline=None)
LATTICE, POINT = Lattice(), LatticeConfig(scale=0.5)
SIZE = (513, 513)


def words(size):
    return hnp.arrays(np.uint32, size, elements=st.integers(0, 2**32 - 1))


def assert_same(name, *arguments):
    """Runs kernel and twin on copies of the arguments and compares all that they leave behind."""
    left, right = deepcopy(arguments), deepcopy(arguments)
    assert getattr(moved_kernels, name)(*left) == getattr(twins, name)(*right)
    for ours, theirs in zip(left, right, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    return left


@EXAMPLES
@given(st.integers(0, 60), st.data())
def test_kernels_on_words(size, data):
    base, other = data.draw(words(size)), data.draw(words(size))
    kept = data.draw(words(size))
    cells = (base & kept) | (other & ~kept)
    room, bytes_ = np.zeros(size, np.uint32), np.zeros(size, np.uint8)
    assert_same("gather_ages", base, bytes_)
    assert_same("age_cells", base, room)
    flags = assert_same("flag_moves", base, cells, bytes_)[-1]
    count = moved_kernels.count_flags(flags)
    assert count == twins.count_flags(flags)
    where, expected = np.zeros(count + 1, np.uint32), np.zeros(count + 1, np.uint32)
    moved_kernels.places(flags, np.zeros(size + 1, np.uint32), where)
    twins.places(flags, None, expected)
    assert where[:-1].tolist() == expected[:-1].tolist()
    assert_same("remember", base.view(np.uint8), cells.view(np.uint8))


@EXAMPLES
@given(st.integers(1, 60), st.integers(3, 7), st.data())
def test_kernels_on_moved_weights(size, bits, data):
    base, cells, values = (data.draw(hnp.arrays(np.uint8, size)) for _ in range(3))
    where = np.flatnonzero(data.draw(hnp.arrays(np.bool_, size))).astype(np.uint32)
    at = assert_same("gather_cells", base, where, np.zeros(where.size, np.uint8))[-1]
    entries = np.random.default_rng(size).integers(1, 1 << 8, 1 << 16).astype(np.uint16)
    assert_same("gather_residuals", at, cells, where, entries, values[: where.size].copy())
    entries[:: 1 << 4] += IMPOSSIBLE
    assert_same("move_cells", at, values[: where.size], where, entries[: 1 << (8 + bits)], bits, cells)


# -- whole checkpoints ---------------------------------------------------------------------------


def weights(seed=0):
    state = {
        "large": torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)),
        "small": torch.ones(9),
    }
    state["large"].view(-1)[:3] = torch.tensor([40.0, -40.0, 9.0])
    return state


def chain(share=0.02, links=5):
    """(state, base's reference, draft) of each delta of a chain."""
    state, ref = weights(), None
    for seed in range(links):
        draft_ = LATTICE.draft(state, ref, POINT, Hints())
        if ref is not None:
            yield state, ref, draft_
        ref = draft_.encode()[1]
        state = trained(state, share, seed)
        state["large"].view(-1)[seed] = 30.0 * (-1) ** seed


def test_both_ways_to_code_a_link_say_the_same_in_as_many_bytes(monkeypatch):
    for state, ref, flagged in chain():
        predicted = flagged.size
        streams, held = flagged.encode()
        table = StreamTable(streams, state)
        assert table.has("large", "moved")
        assert abs(predicted - table.nbytes) <= 0.01 * table.nbytes
        read = LATTICE.decode(table, ref)
        with monkeypatch.context() as patch:
            patch.setattr(draft, "few_moved", lambda *_: None)
            _, other, other_read, plain = store(LATTICE, state, ref, POINT)
        assert not plain.has("large", "moved")
        for each in (read, other, other_read):
            own, their = held.tensors["large"], each.tensors["large"]
            np.testing.assert_array_equal(own.packed, their.packed)
            np.testing.assert_array_equal(own.outliers, their.outliers)
        assert table.nbytes <= 1.02 * plain.nbytes


def test_one_tensor_of_many_is_read_alone():
    state, ref, flagged = list(chain())[-1]
    table = StreamTable(flagged.encode()[0], state)
    whole, alone = LATTICE.decode(table, ref), LATTICE.decode(table, ref, ["large"])
    assert torch.equal(whole.state()["large"], alone.state()["large"])


@pytest.mark.parametrize(("share", "scale"), [(0.5, 0.5), (0.02, 0.02), (0.0, 0.5)])
def test_where_many_moved_or_none_or_cells_are_wide_there_are_no_flags(share, scale):
    point = LatticeConfig(scale=scale)
    _, ref, _, _ = store(LATTICE, weights(), None, point)
    assert not store(LATTICE, trained(weights(), share), ref, point)[3].has("large", "moved")


def test_a_new_lattice_and_a_small_tensor_have_no_flags():
    _, _, read, _ = store(LATTICE, weights(), None, POINT)
    assert not store(LATTICE, trained(weights(), 0.02), read, POINT)[3].has("large", "moved")
    small = {"large": weights()["large"][:300]}
    _, ref, _, _ = store(LATTICE, small, None, POINT)
    assert not store(LATTICE, trained(small, 0.02), ref, POINT)[3].has("large", "moved")


# -- bytes that nobody wrote ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def link():
    """(table, base) of a link whose moves are flagged."""
    state, ref, flagged = list(chain(links=3))[-1]
    return StreamTable(flagged.encode()[0], state), ref


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_hostile_streams_are_refused_or_decode_to_the_right_shape(link, data):
    source, ref = link
    try:
        state = LATTICE.decode(hostile(data, source), ref).state()
    except CorruptFileError:
        return
    assert {name: TensorSpec.of(tensor) for name, tensor in state.items()} == source.specs


def replaced(link, kind, codec, payload):
    source, ref = link
    table = StreamTable([], {})
    table.specs, table.rows = source.specs, source.rows | {("large", kind): (codec, payload)}
    return table, ref


def test_flags_of_weights_that_do_not_exist_are_refused(link):
    groups = -(-SIZE[0] * SIZE[1] // 4)
    for last in (2, 16):  # 513 * 513 weights leave one in the last group; 16 is no set of four flags
        flags = np.zeros(groups, np.uint8)
        flags[-1] = last
        with pytest.raises(CorruptFileError, match="tensor large: its stream of moves"):
            LATTICE.decode(*replaced(link, "moved", 0, flags.tobytes()))


@pytest.mark.parametrize("residual", [40, 62, 63, 255])
def test_residuals_that_lead_out_of_the_cells_are_refused(link, residual):
    with pytest.raises(CorruptFileError, match="tensor large: a residual leads to a cell"):
        LATTICE.decode(*replaced(link, "residuals", 9, bytes([residual])))


def test_moves_without_residuals_are_refused(link):
    source, ref = link
    table = StreamTable([], {})
    table.specs, table.rows = source.specs, dict(source.rows)
    del table.rows["large", "residuals"]
    with pytest.raises(CorruptFileError, match="residuals"):
        LATTICE.decode(table, ref)


@pytest.mark.parametrize(
    ("row", "scheme", "message"),
    [
        (Row(NEW, 0.5), FEW_MOVED, "moves are flagged, but it is not on its base's lattice"),
        (Row(KEPT), FEW_MOVED + 6, "a flag or a scheme"),
        (Row(KEPT), FEW_MOVED - 1, "a flag or a scheme"),
    ],
)
def test_layouts_that_flag_what_cannot_be_flagged_are_refused(link, row, scheme, message):
    source, ref = link
    (layout,) = Layout(ref.epoch, ref.epoch, 0.5, [row, Row(KEPT)], [scheme, 0]).streams()
    table = StreamTable([], {})
    table.specs = source.specs
    table.rows = source.rows | {("", "layout"): (layout.codec, layout.payload)}
    with pytest.raises(CorruptFileError, match=message):
        LATTICE.decode(table, ref)


def test_runs_of_several_tensors_flag_no_moves(link):
    source, ref = link
    table = StreamTable([], {})
    table.specs = {"small": source.specs["small"], "other": source.specs["small"]}
    (layout,) = Layout(ref.epoch, ref.epoch, 0.5, [Row(KEPT), Row(KEPT)], [FEW_MOVED]).streams()
    table.rows = {("", "layout"): (layout.codec, layout.payload)}
    with pytest.raises(CorruptFileError, match="a flag or a scheme"):
        LATTICE.decode(table, ref)
