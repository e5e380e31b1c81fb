"""SmaQ's kernels for a device give the bits of the CPU's; Triton's interpreter runs them here."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import nn

from dynaquant_core import device_jit
from dynaquant_core.errors import UnsupportedStateError
from dynaquant_core.memory import smaq
from dynaquant_core.memory.smaq import SmaQ, cpu_path
from dynaquant_core.memory.smaq.chunks import CHUNK, chunk_count
from dynaquant_core.memory.smaq.levels import Levels, gaps_at
from dynaquant_core.memory.smaq.looks import PlainLook
from dynaquant_core.memory.smaq.statistics import Statistics, ends_of
from tests.memory.nets import ONLY_MAPS
from tests.triton_here import interpret

LEVELS = [Levels(), Levels(2, 3), Levels(9, 9, box=0.5, limit=8.0), Levels(5, 9, box=1.5, limit=3.0)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    interpret(monkeypatch)


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(size, dtype=torch.float32, seed=0):
    return (torch.randn(size, generator=stream(seed)) + 0.25).to(dtype)


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("size", [1, 1000, 2 * CHUNK + 9])
def test_codes_values_and_counts_are_those_of_the_cpu(monkeypatch, levels, size):
    from dynaquant_core.memory.smaq.device import path

    monkeypatch.setattr(path, "busy", lambda device: 2)  # so that a program has two chunks
    dtype, key = DTYPES[(size + levels.inlier_bits) % 4], 2**63 - 5 if size == 1000 else 3
    values, statistics = normal(size, dtype), Statistics(0.25, 1.0)
    values[::97] = 1e4  # far beyond every limit
    here, there = (side.encode(values, levels, statistics, key) for side in (cpu_path, path))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(here, there, strict=True))
    tables = levels.tables(0.25, 1.0)
    for wanted in (slice(0, chunk_count(size)), slice(chunk_count(size) - 1, chunk_count(size))):
        mine, theirs = (side.read(*here, levels, tables, size, wanted, dtype) for side in (cpu_path, path))
        assert torch.equal(mine, theirs)
        assert theirs.dtype == dtype
    mine, theirs = (side.settle(values, levels, statistics, key, tables, dtype) for side in (cpu_path, path))
    assert torch.equal(mine[0], theirs[0])
    assert mine[1] == theirs[1] == int(here[3].sum())


def test_codes_do_not_hang_on_the_default_dtype():
    from dynaquant_core.memory.smaq.device import path

    values, levels, statistics = normal(1000), Levels(6, 8, box=1.1, limit=3.3), Statistics(0.25, 1.0)
    path.geometry_on.cache_clear()
    torch.set_default_dtype(torch.float16)
    try:
        there = path.encode(values, levels, statistics, 1)
    finally:
        torch.set_default_dtype(torch.float32)
    here = cpu_path.encode(values, levels, statistics, 1)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(here, there, strict=True))


@pytest.mark.parametrize(
    ("low", "high"), [(0.01, math.inf), (-math.inf, 1.905), (0.01, 1.905), (1.903, 1.905)]
)
def test_values_in_gaps_that_are_cut_are_spread_alike(low, high):
    from dynaquant_core.memory.smaq.device import path

    values, levels = normal(5000).clamp(max(low, -9.0), min(high, 9.0)), Levels()
    gaps, statistics = gaps_at(levels, 0.9, 0.6, low, high), Statistics(0.9, 0.6)
    assert gaps is not None
    here, there = (side.encode(values, levels, statistics, 7, gaps) for side in (cpu_path, path))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(here, there, strict=True))
    plain = cpu_path.encode(values, levels, statistics, 7)
    assert not all(torch.equal(mine, other) for mine, other in zip(here, plain, strict=True))


CASES = {
    "no zeros": lambda size: normal(size),
    "rectified": lambda size: normal(size).relu(),
    "few zeros": lambda size: torch.where(torch.arange(size) == size // 2, 0.0, normal(size)),
    "a blank row": lambda size: torch.where(torch.arange(size) < 8, 0.0, normal(size)),
    "far from zero": lambda size: normal(size) * 1e-3 + 1e4,
    "half": lambda size: normal(size, torch.float16).relu(),
    "subnormal": lambda size: normal(size) * 1e-41,
    "all zero": torch.zeros,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [9, CHUNK + 9])
def test_a_look_finds_what_the_cpu_finds(name, size):
    from dynaquant_core.memory.smaq.device import zeros
    from dynaquant_core.memory.smaq.device.look import DeviceLook

    values = CASES[name](size)
    mine, theirs = PlainLook(values, ends_of(values)), DeviceLook.of(values)
    assert mine.ends == theirs.ends
    kept, mask = theirs.without_zeros()
    expected, wanted = mine.without_zeros()
    assert torch.equal(kept.values, expected.values)
    assert kept.ends == expected.ends
    assert (mask is None) == (wanted is None)
    if mask is not None:
        assert torch.equal(mask, wanted)
        assert torch.equal(zeros.join(kept.values, mask, size), values)
    for found, other in ((theirs, mine), (kept, expected)):
        if other.ends.low < other.ends.high:
            for method in ("exact", "range", "sample"):
                spread = [one.statistics(method, 64, stream(3)) for one in (found, other)]
                assert spread[0].mean == pytest.approx(spread[1].mean, rel=1e-6)
                assert spread[0].std == pytest.approx(spread[1].std, rel=1e-6)


@pytest.mark.parametrize("name", ["no zeros", "few zeros", "far from zero"])
def test_what_is_drafted_on_the_device_has_the_numbers_of_the_host(name):
    from dynaquant_core.memory.smaq.device import path
    from dynaquant_core.memory.smaq.device.look import DeviceLook

    values = CASES[name](CHUNK + 9)
    look = DeviceLook.of(values, Levels())
    statistics = look.statistics("exact", 0, stream())
    assert look.draft.about == path.numbers(statistics, None)[:2]
    here = cpu_path.encode(values, Levels(), statistics, 1)
    assert torch.equal(look.draft.mask, here[0])
    assert torch.equal(look.draft.outliers, here[3])
    assert all(
        torch.equal(*both) for both in zip(here, look.encode(Levels(), statistics, 1, None), strict=True)
    )


def test_a_spread_that_float32_cannot_divide_by_is_none():
    packed = SmaQ().encode(CASES["subnormal"](CHUNK + 9), stream())
    assert packed.statistics.std == 0
    assert packed.decode().unique().tolist() == [packed.statistics.mean]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter's numpy
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, CHUNK + 3])
def test_what_is_not_finite_is_refused(bad, place):
    values = normal(CHUNK + 9)
    values[place] = bad
    with pytest.raises(UnsupportedStateError, match="16393 values holds NaN, infinity"):
        SmaQ().encode(values, stream())


FORMS = [SmaQ(), SmaQ(4, 5), SmaQ(keep_zeros=False), SmaQ().second_moments(), SmaQ(statistics="sample")]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_comes_back_as_on_the_cpu(monkeypatch, form, dtype):
    values = normal((51, 131), dtype).abs() if form.logarithm else normal((51, 131), dtype).relu()
    there = form.encode(values, stream(1))
    back, settled = there.decode(), form.settle(values, stream(1))
    assert torch.equal(back, settled[0])
    monkeypatch.setattr(device_jit, "compiles", lambda device: False)
    here = form.encode(values, stream(1))
    away = (back.float() - here.decode().float()).abs()
    # The last bit of a deviation may be another, and with it a draw beside the border of two levels.
    assert (away > 1e-5 * (1 + values.float().abs())).float().mean() < 1e-3
    assert there.nbytes == pytest.approx(here.nbytes, rel=1e-3)


def test_a_model_trains_with_its_maps_packed_by_them():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    inputs = torch.randn(48, 32)

    def gradient():
        model.zero_grad()
        model(inputs).square().mean().backward()
        return torch.cat([one.grad.flatten() for one in model.parameters()])

    exact = gradient()
    with smaq.apply(model, **ONLY_MAPS) as handle:
        found = gradient()
    assert (found - exact).norm() < 0.2 * exact.norm()
    assert handle.report()["saved"]["benefit"] > 3.5


class NoCompiler:
    """A device whose kernels cannot be compiled."""

    type, index = "cuda", None


def test_without_a_compiler_it_is_said_once_and_torch_serves(monkeypatch, caplog):
    from dynaquant_core import device_probe

    monkeypatch.undo()
    device_jit._tried.cache_clear()
    device_jit._tell.cache_clear()

    def fail(device):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(device_probe, "probe", fail)
    monkeypatch.setattr(torch.version, "hip", None)
    with caplog.at_level(logging.WARNING):
        assert not device_jit.compiles(NoCompiler())
        assert not device_jit.compiles(NoCompiler())
    device_jit._tried.cache_clear()
    assert [record.message.count("Failed to find C compiler") for record in caplog.records] == [1]
