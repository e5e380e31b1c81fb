"""Bad points, options, bases and bytes: one clear error each, and never another kind of failure."""

from __future__ import annotations

import math
import struct
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.config import LatticeConfig
from dynaquant_core.errors import ConfigError, CorruptFileError, LimitError, MissingBaseError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.methods.lattice.layout import EXACT, KEPT, NEW, Layout, Row
from dynaquant_core.methods.registry import resolve_method
from dynaquant_core.state import TensorSpec
from tests.methods.conftest import layers, trained
from tests.methods.streams import StreamTable, hostile, store

LATTICE = Lattice()


# -- points, options, space ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "scale", [0, -1.0, math.nan, math.inf, -math.inf, 1e-9, 1e9, True, False, None, "fine", (1,), 10**400]
)
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(ConfigError, match="scale"):
        LatticeConfig(scale=scale)
    with pytest.raises(ConfigError, match="scale"):
        LATTICE.config({"scale": scale})


def test_points_come_back_from_their_data_and_unknown_keys_are_refused():
    for scale in (2, 0.25, "bf16", "exact"):
        point = LatticeConfig(scale=scale)
        assert LATTICE.config(point.as_dict()) == point
    with pytest.raises(ConfigError, match="bins"):
        LATTICE.config({"bins": 4})


@pytest.mark.parametrize(
    "options",
    [
        {"coder": "paper"},
        {"scale": 0.5},
        {"max_noise": 0},
        {"max_noise": "much"},
        {"max_noise": math.nan},
        {"max_step": 0.01},
        {"max_step": "wide"},
        {"max_step_of": "matrices"},
    ],
)
def test_other_options_are_config_errors(options):
    with pytest.raises(ConfigError, match="|".join(options)):
        Lattice(**options)
    with pytest.raises(ConfigError, match="|".join(options)):
        resolve_method({"name": "lattice", **options})


def test_a_word_that_is_no_bound_is_told_which_are():
    with pytest.raises(ConfigError, match=r"max_noise must be a number in .* or 'auto' or None, got 'much'"):
        Lattice(max_noise="much")


def test_the_bound_on_noise_reaches_the_search_and_is_recorded_where_it_is_not_the_default():
    shares = {None: [0.0, 0.0], 5: [4.0, 4.0], 40.0: [0.5, 0.5], "auto": [0.2, 2.0**0.5]}
    for bound, share in shares.items():
        method = resolve_method({"name": "lattice", "max_noise": bound})
        space = method.space(gradients=False)
        assert [space.excess(20.0, cost) for cost in (0.0, 0.05)] == pytest.approx(share)
        assert resolve_method({"name": "lattice", **method.options()}).options() == method.options()
    assert Lattice().options() == {}, "files written before the option existed say nothing of it"


@pytest.mark.parametrize(
    ("widest", "count", "boldest"), [(1.0, 37, 1.96), (None, 48, 8.0), (0.05, 13, 0.091)]
)
def test_space_is_one_axis_from_careful_to_bold_and_ends_exact(widest, count, boldest):
    method = Lattice(max_step=widest)
    space = method.fitted(method.space(gradients=False), {"w": torch.ones(20, 20)}, Hints())
    (scales,) = space.axes.values()
    assert len(scales) == count
    assert scales[-1] == pytest.approx(boldest, rel=0.01)
    assert all(bold / careful == pytest.approx(1 / 0.88, rel=1e-3) for careful, bold in pairwise(scales))
    assert (space.variants, space.refine) == ({}, {})
    assert [point.scale for point in space.beyond] == [0.01, 0.003, "bf16", "exact"]
    assert all(space.build(scale=scale).scale == scale for scale in scales)


@pytest.mark.parametrize(
    ("tensor", "matrix", "vector"),
    [
        (torch.randn(16, 16), True, True),
        (torch.randn(15, 15), False, True),
        (torch.randn(64).half(), False, True),
        (torch.randn(64).double(), False, True),
        (torch.full((64,), 1e300, dtype=torch.float64), False, False),
        (torch.tensor([1.0, math.nan]), False, False),
        (torch.full((20, 20), math.inf), False, False),
        (torch.arange(900).view(30, 30), False, False),
        (torch.ones(30, 30, dtype=torch.complex64), False, False),
        (torch.tensor(1.0), False, False),
        (torch.ones(1), False, False),
        (torch.ones(0), False, False),
    ],
)
def test_what_is_taken(tensor, matrix, vector):
    assert LATTICE.accepts(tensor) == matrix
    if tensor.dim() < 2:
        assert LATTICE.accepts_vector(tensor) == vector


# -- bases ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files():
    """(table, reference to decode it against) of a key, of deltas in every way, and of a key made of one."""
    state = layers() | {"norm": torch.rand(64), "zeros": torch.zeros(99)}
    state["mlp.2.weight"].view(-1)[:3] = torch.tensor([30.0, -300.0, 70.0])
    _, held, read, key = store(LATTICE, state, None, LatticeConfig())
    later = trained(state)
    found = {"key": (key, None), "rekeyed": (StreamTable(LATTICE.rekey(held), state), None)}
    for name, base, scale in (
        ("kept", held, 0.5),
        ("redrawn", read, 0.5),
        ("fine", held, 0.01),
        ("bf16", held, "bf16"),
        ("exact", read, "exact"),
    ):
        found[name] = store(LATTICE, later, base, LatticeConfig(scale=scale))[3], read
    return found


DELTAS = ("kept", "redrawn", "fine", "bf16", "exact")


@pytest.mark.parametrize("name", DELTAS)
def test_a_missing_base_is_named(files, name):
    with pytest.raises(MissingBaseError, match="stands on one of epoch"):
        LATTICE.decode(files[name][0], None)


@pytest.mark.parametrize("name", DELTAS)
def test_a_base_of_another_epoch_is_refused(files, name):
    table, base = files[name]
    other = store(LATTICE, trained(layers()), None, LatticeConfig())[2]
    with pytest.raises(CorruptFileError, match=f"epoch {base.epoch}, found epoch {other.epoch}"):
        LATTICE.decode(table, other)


def test_a_key_is_not_decoded_against_a_base(files):
    with pytest.raises(CorruptFileError, match="epoch None, found epoch"):
        LATTICE.decode(files["key"][0], files["kept"][1])


@pytest.mark.parametrize("name", DELTAS)
def test_a_base_of_other_shapes_is_refused(files, name):
    table, base = files[name]
    state = {tensor: value.reshape(-1) for tensor, value in base.state().items()}
    other = store(LATTICE, state, None, LatticeConfig())[2]
    other.epoch = base.epoch
    with pytest.raises(CorruptFileError, match="does not fit its base"):
        LATTICE.decode(table, other)


# -- bytes ---------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_hostile_streams_are_refused_or_decode_to_the_right_shape(files, data):
    source, ref = files[data.draw(st.sampled_from(sorted(files)))]
    table = hostile(data, source)
    try:
        state = LATTICE.decode(table, ref).state()
    except (CorruptFileError, MissingBaseError):
        return
    assert {name: TensorSpec.of(tensor) for name, tensor in state.items()} == source.specs


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_hostile_layouts_and_cells_of_a_right_checksum(files, data):
    """As if an enemy had made them: fields that mean something, not only bytes."""
    source, ref = files[data.draw(st.sampled_from(["kept", "redrawn", "rekeyed"]))]
    count = len(source.specs)
    table = StreamTable([], {})
    table.specs, table.rows = source.specs, dict(source.rows)
    kinds = data.draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    steps = data.draw(st.lists(st.integers(0, 65535), min_size=count, max_size=count))
    based = data.draw(st.sampled_from([ref is not None, 0, 1, 2]))
    header = struct.pack("<IIBd", 5, 0 if ref is None else ref.epoch, based, data.draw(st.floats()))
    steps = np.where(np.array(kinds) == NEW, 0x3C23, steps).astype("<u2").view(np.uint8).reshape(count, 2)
    rest = np.concatenate([np.array(kinds, np.uint8), *steps.T, np.zeros(count + 1, np.uint8)])
    table.rows["", "layout"] = 0, header + rest.tobytes()
    for key in [key for key in table.rows if key[1] == "cells"]:
        byte = data.draw(st.integers(0, 255))
        table.rows[key] = 9, bytes([byte])
    for key in [key for key in table.rows if key[1] == "outliers"]:
        table.rows[key] = 9, data.draw(st.binary(min_size=4, max_size=4))
    try:
        state = LATTICE.decode(table, ref).state()
    except (CorruptFileError, MissingBaseError):
        return
    assert {name: TensorSpec.of(tensor) for name, tensor in state.items()} == source.specs


@pytest.mark.parametrize("kind", [NEW, EXACT])
def test_absurd_sizes_are_refused_before_memory_is_taken(kind):
    table = StreamTable(Layout(1, None, 0.5, [Row(kind, 0.5)], [0]).streams(), {})
    table.specs = {"w": TensorSpec((1 << 20, 1 << 22), "float32")}
    with pytest.raises(LimitError, match="memory"):
        LATTICE.decode(table, None)


@pytest.mark.parametrize(
    ("row", "schemes", "message"),
    [
        (Row(5), [0], "no way to hold"),
        (Row(NEW, 0.0), [0], "no way to hold"),
        (Row(NEW, -0.5), [0], "no way to hold"),
        (Row(NEW, float("nan")), [0], "no way to hold"),
        (Row(NEW, 2.0**120), [0], "no way to hold"),
        (Row(NEW, 0.5, 8), [0], "no way to hold"),
        (Row(NEW, 0.5), [6], "a flag or a scheme"),
    ],
)
def test_a_layout_that_is_never_written_is_refused(row, schemes, message):
    state = {"w": torch.zeros(300, 300)}
    table = StreamTable(Layout(1, None, 0.5, [row], schemes).streams(), state)
    with pytest.raises(CorruptFileError, match=message):
        LATTICE.decode(table, None)


def test_a_lattice_that_should_be_the_bases_but_is_not_there():
    state = layers()
    exact = store(LATTICE, state, None, LatticeConfig(scale="exact"))[2]
    layout = Layout(exact.epoch, exact.epoch, 0.5, [Row(KEPT)] * len(state), [0])
    table = StreamTable(layout.streams(), state)
    with pytest.raises(MissingBaseError, match="no base is on one"):
        LATTICE.decode(table, exact)


def test_a_key_without_residuals_is_a_checkpoint_of_aims():
    """Where nothing moved there is no stream; in a key that means k = 0 everywhere."""
    state = layers()
    layout = Layout(3, None, 0.5, [Row(NEW, 0.5)] * len(state), [0])
    found = LATTICE.decode(StreamTable(layout.streams(), state), None).state()
    assert all(bool((tensor.abs() <= 0.25).all()) for tensor in found.values())
