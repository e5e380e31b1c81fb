"""Compiled loops, tensor operations and plain twins say the same, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.memory.smaq import cpu_path, packed_words, smaq_kernels, torch_path, zeros
from dynaquant_core.memory.smaq.chunks import CHUNK, chunk_count
from dynaquant_core.memory.smaq.levels import Levels
from dynaquant_core.memory.smaq.statistics import Statistics
from tests.reference import smaq_twins

LEVELS = [Levels(), Levels(2, 3), Levels(9, 9, box=0.5, limit=8.0), Levels(5, 9, box=1.5, limit=3.0)]
SIZES = [1, 7, 8, 9, 1000, CHUNK, CHUNK + 1, 3 * CHUNK - 5]


def case(size, seed=0, scale=1.0):
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale + 0.25
    return values, Statistics(float(np.float32(0.25)), float(np.float32(scale)))


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("size", [1, 8, 1001])
def test_kernels_equal_their_twins(levels, size):
    values, statistics = case(size)
    values[::97] = 1e30  # far beyond every limit
    mean, inverse = cpu_path.scaled(statistics)
    geometry, tables = levels.geometry(), levels.tables(statistics.mean, statistics.std)
    widths = np.uint64(levels.inner_width), np.uint64(levels.outer_width)
    words, halves, insides, outsides = cpu_path.scratch()
    got = []
    for side in (smaq_kernels, smaq_twins):
        mask = np.zeros(-(-size // 8), np.uint8)
        outliers = int(side.classify(values.numpy(), mean, inverse, geometry.box, mask))
        inner = np.zeros(-(-(size - outliers) // 8) * levels.inner_width, np.uint8)
        outer = np.zeros(-(-outliers // 8) * levels.outer_width, np.uint8)
        draws = np.uint64(2**64 - 3), np.uint64(5)
        scratch = (words, halves, insides, outsides)
        side.write_chunk(values.numpy(), mean, inverse, geometry, widths, *draws, *scratch, inner, outer)
        read, settled = np.zeros(size, np.float32), np.zeros(size, np.float32)
        side.read_chunk(mask, inner, outer, np.uint64(outliers), widths, *tables, insides, outsides, read)
        found = side.settle(values.numpy(), mean, inverse, geometry, *draws, words, halves, *tables, settled)
        assert int(found) == outliers
        assert read.tobytes() == settled.tobytes()
        got.append([outliers, *(array.tobytes() for array in (mask, inner, outer, read))])
    assert got[0] == got[1]


@pytest.mark.parametrize("together", [torch_path.TOGETHER, 2])
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("size", SIZES)
def test_every_device_has_the_same_bits(monkeypatch, levels, size, together):
    """Also where a tensor is more than one piece of chunks."""
    monkeypatch.setattr(torch_path, "TOGETHER", together)
    values, statistics = case(size, seed=size)
    tables = levels.tables(statistics.mean, statistics.std)
    here, there = (side.encode(values, levels, statistics, 99) for side in (cpu_path, torch_path))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(here, there, strict=True))
    whole = slice(0, chunk_count(size))
    sides, dtype = (cpu_path, torch_path), torch.float32
    read = [side.read(*here, levels, tables, size, whole, dtype) for side in sides]
    settled = [side.settle(values, levels, statistics, 99, tables, dtype)[0] for side in sides]
    assert torch.equal(read[0], read[1])
    assert torch.equal(read[0], settled[0])
    assert torch.equal(read[0], settled[1])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 200), st.integers(1, 8), st.integers(0, 2**32))
def test_runs_of_codes_unpack_to_themselves(count, width, seed):
    codes = torch.from_numpy(np.random.default_rng(seed).integers(0, 2**width, count, dtype=np.uint8))
    packed = packed_words.pack_run(codes, width)
    assert packed.numel() == -(-count // 8) * width
    assert torch.equal(packed_words.unpack_run(packed, width)[:count], codes)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("size", [1, 9, CHUNK, 5 * CHUNK + 3])
def test_zeros_are_split_off_and_joined_alike_on_every_device(monkeypatch, size, share):
    monkeypatch.setattr(torch_path, "TOGETHER", 2)
    values, _ = case(size)
    values[torch.rand(size, generator=torch.Generator().manual_seed(1)) < share] = 0
    there = values != 0
    kept, mask = zeros.split_by_torch(values, there)
    assert torch.equal(kept, values[there])
    assert mask.tolist() == np.packbits(there.numpy(), bitorder="little").tolist()
    assert torch.equal(zeros.join_by_torch(kept, mask, size), values)
    assert torch.equal(zeros.join(kept, mask, size), values)


@pytest.mark.parametrize("threads", ["1", "3"])
def test_the_number_of_threads_changes_nothing(monkeypatch, threads):
    values, statistics = case(40 * CHUNK)
    wanted = torch_path.encode(values, Levels(), statistics, 1)
    monkeypatch.setenv("DYNAQUANT_THREADS", threads)
    found = cpu_path.encode(values, Levels(), statistics, 1)
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
