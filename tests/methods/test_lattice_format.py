"""docs/FORMAT-lattice.md says enough: a reader made from it alone gets every bit that the method wrote."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dynaquant_core.config import LatticeConfig
from dynaquant_core.methods.base import Hints
from dynaquant_core.methods.lattice import Lattice
from dynaquant_core.methods.lattice.cells import Cells
from tests.methods.conftest import layers, trained
from tests.methods.streams import StreamTable, assert_same, store
from tests.reference import lattice_reader
from tests.reference.lattice_twins import numbers

LATTICE = Lattice()
PAGE = Path(__file__).resolve().parents[2] / "docs" / "FORMAT-lattice.md"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("scales", [(0.5, 0.5, 0.5), (0.5, 4.0, 0.02, 0.02), (0.1, "bf16", 0.5, "exact")])
def test_a_reader_made_from_the_page_alone(dtype, scales):
    state = layers(dtype=dtype) | {"bias": torch.randn(70).to(dtype), "zeros": torch.zeros(300, dtype=dtype)}
    state["big.weight"] = torch.randn(257, 256).to(dtype)
    state["mlp.2.weight"].view(-1)[:3] = torch.tensor([9.0, -40.0, 150.0])
    ref, page = None, {}
    for seed in range(6):
        point = LatticeConfig(scale=scales[seed % len(scales)])
        _, held, read, table = store(LATTICE, state, ref, point)
        page = lattice_reader.decode(table, page)
        assert_same(read.state(), {name: tensor.values for name, tensor in page.items()})
        for name, own in read.tensors.items():
            if isinstance(own, Cells) and own.alphabet.narrow:
                assert (own.packed & 7 == page[name].history).all()
        ref = read if seed % 3 == 2 else held
        state = trained(state, 0.1, seed) | {"zeros": state["zeros"]}
    rekeyed = lattice_reader.decode(StreamTable(LATTICE.rekey(ref), state), {})
    assert_same(ref.state(), {name: tensor.values for name, tensor in rekeyed.items()})


def test_a_reader_made_from_the_page_alone_of_moves_that_are_flagged():
    """A tensor of which few weights move, on a lattice that stays, after a restore and with outliers too."""
    weights = {"large.weight": torch.randn(513, 513), "small.weight": torch.randn(64, 64)}
    weights["large.weight"].view(-1)[:3] = torch.tensor([40.0, -40.0, 9.0])
    ref, page, flagged = None, {}, 0
    for seed in range(6):
        _, held, read, table = store(LATTICE, weights, ref, LatticeConfig(scale=0.5))
        flagged += table.has("large.weight", "moved")
        page = lattice_reader.decode(table, page)
        assert_same(read.state(), {name: tensor.values for name, tensor in page.items()})
        assert (read.tensors["large.weight"].packed & 7 == page["large.weight"].history).all()
        ref = read if seed == 2 else held
        weights = trained(weights, 0.02, seed)
        weights["large.weight"].view(-1)[seed] = 30.0 * (-1) ** seed
    assert flagged == 4  # neither the key nor the first after a restore


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_reader_made_from_the_page_alone_of_rows_that_stay(dtype):
    """A table of which some rows are zeros and others are never trained; the run is restored twice."""
    table = torch.randn(300, 16, dtype=dtype)
    table[[0, 7]] = 0
    types = {"embed.weight": "embedding", "other.weight": "linear"}
    state = {"embed.weight": table, "other.weight": torch.randn(40, 40, dtype=dtype)}
    ref, page, marks = None, {}, []
    for number in range(7):
        _, held, read, streams = store(
            LATTICE, state, ref, LatticeConfig(scale=0.5), Hints(layer_types=types)
        )
        page = lattice_reader.decode(streams, page)
        assert_same(read.state(), {name: tensor.values for name, tensor in page.items()})
        marks.append(page["embed.weight"].still.tolist())
        restored = number in {1, 4}
        ref = read if restored else held
        if restored:
            state = read.state()
        state["embed.weight"][50:120] += 0.1 * torch.randn(70, 16).to(dtype)
        state["other.weight"] += 0.1
    assert [row.count(1) for row in marks] == [0, 0, 228, 228, 228, 228, 228]
    assert all(row.count(2) == 2 for row in marks)
    rekeyed = lattice_reader.decode(StreamTable(LATTICE.rekey(ref), state), {})
    assert_same(ref.state(), {name: tensor.values for name, tensor in rekeyed.items()})


def test_a_reader_made_from_the_page_alone_of_rows_that_a_base_in_bfloat16_has_rounded():
    """Their words are given, in a delta; the next one has a base that holds them."""
    state = {"embed.weight": torch.randn(300, 16), "other.weight": torch.randn(40, 40)}
    ref, page, given = None, {}, []
    for number, scale in enumerate((0.5, 0.5, "bf16", 0.5, 0.5)):
        _, held, read, streams = store(LATTICE, state, ref, LatticeConfig(scale=scale))
        page = lattice_reader.decode(streams, page)
        assert_same(read.state(), {name: tensor.values for name, tensor in page.items()})
        given.append(streams.has("embed.weight", "rows"))
        ref = held if number else read
        state = state if number else read.state()
        state["embed.weight"][50:120] += 0.1 * torch.randn(70, 16)
        state["other.weight"] += 0.1
    assert given == [False, False, False, True, False]
    assert torch.equal(read.state()["embed.weight"][:50], state["embed.weight"][:50])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_reader_made_from_the_page_alone_of_tensors_of_one_sign(dtype):
    """Some with zeros, of a row or all over, one that keeps its norm; the run is restored twice."""
    state = {
        name: torch.rand(300, 16, dtype=dtype) for name in ("some.weight", "padded.weight", "sparse.weight")
    }
    state["padded.weight"][7] = 0
    state["sparse.weight"][torch.rand(300, 16) < 0.5] = 0
    state |= {"minus": -torch.rand(500, dtype=dtype), "zero": torch.rand(500, dtype=dtype)}
    state["zero"][3] = 0
    state["conv.weight"] = torch.rand(64, 16, 3, 3).to(dtype)
    hints = Hints(layer_types={"conv.weight": "convolution"}, roles={"bn.running_var": "exact"})
    ref, page = None, {}
    for number in range(6):
        hints = replace(hints, scratch={})
        _, held, read, streams = store(LATTICE, state, ref, LatticeConfig(scale=0.8), hints)
        page = lattice_reader.decode(streams, page)
        assert_same(read.state(), {name: tensor.values for name, tensor in page.items()})
        assert all(own.edge is not None for own in read.tensors.values())
        restored = number in {1, 3}
        ref = read if restored else held
        state = {name: tensor.clone() for name, tensor in (read.state() if restored else state).items()}
        for name in ("some.weight", "minus", "conv.weight"):
            state[name] *= 1.1
    rekeyed = lattice_reader.decode(StreamTable(LATTICE.rekey(ref), state), {})
    assert_same(ref.state(), {name: tensor.values for name, tensor in rekeyed.items()})


def test_the_offsets_that_are_printed():
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    epoch, name, key, drawn = re.search(
        r"Epoch (\d+), name `(.*?)`: key (\w+)h, r = ([\d, ]+)\.", text
    ).groups()
    assert lattice_reader.key_of(int(epoch), name) == int(key, 16)
    assert numbers(int(key, 16), 0, 10).tolist() == [int(number) for number in drawn.split(",")]
