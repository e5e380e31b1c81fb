"""A convolution before a batch norm is restored as long as it was saved; all else as it was, on average."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dynaquant_core.config import LatticeConfig
from dynaquant_core.errors import ConfigError, CorruptFileError
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.methods.lattice.layout import BF16, KEPT, NEW, SHORTENED, Layout, Row
from dynaquant_core.methods.lattice.norm import shortening
from dynaquant_core.quantize.lattice import is_unit
from dynaquant_core.store import CheckpointStore
from dynaquant_core.training import Checkpointer
from tests.methods.conftest import trained
from tests.methods.streams import StreamTable, assert_same, hostile, store
from tests.reference import lattice_reader

LATTICE = Lattice()
BOLD = LatticeConfig(scale=2.0)
NORMED, PLAIN, MATRIX = "net.0.weight", "other.conv.weight", "head.weight"


def hints(**more):
    """What a store knows of a state with one batch norm, beside the first convolution."""
    return Hints(roles={NORMED: "weight", "net.1.running_var": "exact"}, **more)


def network(seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shapes = {NORMED: (64, 32, 3, 3), PLAIN: (64, 32, 3, 3), MATRIX: (128, 96)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def energy(tensor):
    return float(tensor.double().square().sum())


def after_restores(method, count):
    """The energies after so many lives of no step each, over those of the beginning."""
    first = state = network()
    ref = None
    for seed in range(count):
        ref = store(method, state, ref, BOLD, hints())[2]
        state = trained(ref.state(), 1e-4, seed)
    return {name: energy(tensor) / energy(first[name]) for name, tensor in state.items()}


def test_twenty_restores_leave_a_normalised_convolution_as_long_as_it_was():
    kept, free = after_restores(LATTICE, 20), after_restores(Lattice(keep_norm=False), 20)
    assert kept[NORMED] == pytest.approx(1, abs=0.03)
    assert min(free.values()) > 2, "a twelfth each time, over and over"
    for name in (PLAIN, MATRIX):
        assert kept[name] == free[name], "where length has a meaning nothing is shortened"


@pytest.mark.parametrize("step", [2.0**-7, 0.25, 1.0, 3.0])
def test_the_factor_takes_back_what_noise_adds(step):
    values = np.random.default_rng(0).normal(size=1 << 18)
    offsets = np.random.default_rng(1).uniform(-0.5, 0.5, values.size)
    cells = np.rint(values / step - offsets) + offsets
    shorter = step * shortening(step, float(np.mean(values**2)))
    assert is_unit(shorter)
    assert np.mean((cells * shorter) ** 2) == pytest.approx(np.mean(values**2), rel=0.01)


@pytest.mark.parametrize("square", [0.0, float("nan"), float("inf")])
def test_without_a_length_nothing_is_shortened(square):
    assert shortening(1.0, square) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_writer_reader_page_and_size_agree_over_lives_and_scales(dtype):
    state, ref, page = network(dtype=dtype), None, {}
    for seed, scale in enumerate((2.0, 2.0, 1.0, 1.0, 0.02, 0.02, "bf16", 2.0)):
        point = LatticeConfig(scale=scale)
        size = LATTICE.draft(state, ref, point, hints()).size
        seen, held, read, table = store(LATTICE, state, ref, point, hints())
        assert abs(size - table.nbytes) <= 64
        assert_same(seen, read.state())
        assert_same(seen, held.state())
        page = lattice_reader.decode(table, page)
        assert_same(seen, {name: tensor.values for name, tensor in page.items()})
        alone = LATTICE.decode(table, ref, [NORMED]).state()
        assert_same(alone, {NORMED: seen[NORMED]})
        anew = LATTICE.decode(StreamTable(LATTICE.rekey(held), state), None)
        assert_same(seen, anew.state())
        assert table.has("", "factors") or scale in (0.02, "bf16")
        ref = read if seed in (1, 4) else held
        state = trained(state, seed=seed)


def test_a_frozen_convolution_keeps_its_bits_through_restores_and_saves():
    first = network()
    ref = store(LATTICE, first, None, BOLD, hints())[2]
    kept = ref.state()[NORMED]
    for seed, scale in enumerate((2.0, 2.0, 1.5, 0.5)):
        for life in range(3):
            state = trained(ref.state(), seed=seed) | {NORMED: kept}
            _, held, read, _ = store(LATTICE, state, ref, LatticeConfig(scale=scale), hints())
            assert torch.equal(read.state()[NORMED], kept)
            ref = held if life < 2 else read


def test_a_restored_convolution_loses_no_movement_beyond_its_length():
    """The direction of a step is all there after a restore: as much of it as of the weights."""
    start = network()
    ref = store(LATTICE, start, None, BOLD, hints())[2]
    begun = ref.state()
    along = []
    for seed in range(20):
        state = trained(begun, 0.5, seed)
        found = store(LATTICE, state, ref, BOLD, hints())[2].state()[NORMED]
        movement = (state[NORMED] - begun[NORMED]).flatten()
        turned = (found - begun[NORMED]).flatten()
        along.append(float(turned @ movement / (movement @ movement)))
    assert np.mean(along) > 0.95, "a factor of .98, and the beginning is across the movement"


# -- training ------------------------------------------------------------------------------------


def life(folder, norm, steps, **options):
    """A small network, restored if it can be and trained to a step; its length then and at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(8, 64, 3, bias=False), norm(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    inputs, truth = torch.randn(64, 8, 8, 8), torch.randn(64, 10)

    def loss():
        return nn.functional.mse_loss(model(inputs), truth)

    method = {"name": "lattice", **options}
    with Checkpointer(
        folder, model, optimizer, every=5, evaluate=lambda: loss().item(), threshold=0.9, method=method
    ) as saves:
        begun = saves.restore()
        length = energy(model[0].weight.detach())
        for _ in range(begun, steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            saves.step()
    return length, energy(model[0].weight.detach())


@pytest.mark.parametrize(
    ("norm", "options", "same"),
    [
        (nn.BatchNorm2d, {}, True),
        (nn.BatchNorm2d, {"max_noise": None}, True),
        (nn.BatchNorm2d, {"keep_norm": False, "max_noise": None}, False),
        (lambda width: nn.GroupNorm(4, width), {"max_noise": None}, False),
    ],
)
def test_a_restored_network_is_as_long_as_it_was_where_only_its_direction_counts(
    tmp_path, norm, options, same
):
    _, left = life(tmp_path, norm, 10, **options)
    begun, _ = life(tmp_path, norm, 10, **options)
    assert CheckpointStore(tmp_path).info(10).config.scale > 0.5
    assert (abs(begun / left - 1) < 0.03) is same


# -- bytes from elsewhere ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "factors", "message"),
    [
        (Row(NEW, 0.5, 0, 0.25), None, "stream 'factors'"),
        (Row(NEW, 0.5, 0, 0.25), b"\0\0", "multiplied by 0"),
        (Row(NEW, 2.0**-100, 0, 0.25), None, "stream 'factors'"),
        (Row(NEW, 2.0**-100, 0, 0.25), b"\0\1", "decoded in steps of"),
        (Row(BF16, 0.5, 0, 0.25), b"\0\1", "no way to hold"),
    ],
)
def test_a_factor_that_is_never_written_is_refused(row, factors, message):
    state = {"w": torch.zeros(300, 300)}
    table = StreamTable(Layout(1, None, 0.5, [row], [0]).streams(), state)
    del table.rows["", "factors"]
    if factors:
        table.rows["", "factors"] = 0, factors
    with pytest.raises(CorruptFileError, match=message):
        LATTICE.decode(table, None)


def test_a_reader_of_before_refuses_what_it_would_misread():
    """A kind that it does not know, rather than values that are too long."""
    (layout, _) = Layout(1, None, 0.5, [Row(KEPT, 0.0, 0, 0.5), Row(NEW, 0.5, 0, 0.25)], [0]).streams()
    assert bytes(layout.payload)[17:19] == bytes([KEPT + SHORTENED, NEW + SHORTENED])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_hostile_bytes(data):
    state = network()
    ref = store(LATTICE, state, None, BOLD, hints())[1]
    source = store(LATTICE, trained(state), ref, BOLD, hints())[3]
    table = hostile(data, source)
    try:
        found = LATTICE.decode(table, ref).state()
    except CorruptFileError:
        return
    assert {name: tensor.shape for name, tensor in found.items()} == {
        name: tensor.shape for name, tensor in state.items()
    }


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_the_option_is_true_or_false(value):
    with pytest.raises(ConfigError, match="keep_norm"):
        Lattice(keep_norm=value)
