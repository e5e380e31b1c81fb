"""The kernels for a device beyond what the tests of the seam and the lattice ask of every side."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest
import torch

from dynaquant_core import device_jit
from dynaquant_core.quantize import cpu_path, seam, torch_path
from dynaquant_core.quantize.buckets import BitBuckets, LogBuckets
from dynaquant_core.quantize.codebook import lookup, table
from dynaquant_core.quantize.cut import Cut
from dynaquant_core.quantize.dither import Levels, assign_dithered
from dynaquant_core.quantize.lattice import torch_path as lattice_torch_path
from dynaquant_core.quantize.rules import Rules
from dynaquant_core.store import CheckpointStore
from tests.memory.storages import Storages
from tests.quantize.test_lattice import SEAM as LATTICE
from tests.training.models import bits
from tests.triton_here import device_side


@pytest.fixture
def path():
    """The seam's side."""
    return device_side("dynaquant_core.quantize.device.path")


@pytest.fixture
def lattice_path():
    """The lattice's side."""
    return device_side("dynaquant_core.quantize.lattice.device_path")


def sparse(size=9000):
    """Normal values, most of which are zeros of both signs, as after pruning by a mask."""
    draw = torch.Generator().manual_seed(1)
    values = torch.randn(size, generator=draw)
    return values * (torch.rand(size, generator=draw) > 0.8)


@pytest.fixture
def trial(path, monkeypatch):
    """What tries kernels, forgetting what it found before and after; all devices have some, the CPU too."""
    found = importlib.import_module("dynaquant_core.quantize.device.trial")
    monkeypatch.setattr(seam, "side", lambda _: importlib.import_module(TRIED))
    monkeypatch.setattr(LATTICE, "side", lambda _: importlib.import_module(TRIED_LATTICE))
    found._tried.cache_clear()
    yield found
    found._tried.cache_clear()


META = torch.device("meta")
TRIED = "dynaquant_core.quantize.device.tried"
TRIED_LATTICE = "dynaquant_core.quantize.lattice.tried_path"


def test_a_device_gets_kernels_where_they_compile_and_operations_of_torch_elsewhere(monkeypatch, path):
    tried = importlib.import_module(TRIED), importlib.import_module(TRIED_LATTICE)
    for compiles, expected in ((True, tried), (False, (torch_path, lattice_torch_path))):
        monkeypatch.setattr(device_jit, "compiles", lambda device, found=compiles: found)
        assert (seam.side(torch.empty(1, device=META)), LATTICE.side(torch.device("cuda"))) == expected
        assert seam.side(torch.empty(1)) is cpu_path


FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def coded(values):
    """All that is made of a tensor by any kernel, and what all of it decodes to."""
    gradient, base = values.float().roll(1), (np.arange(values.numel()) % 3).astype(np.uint8)
    found, centres = [], np.array([-0.5, 0.2], np.float32)
    for buckets in (BitBuckets(6), LogBuckets(0.01)):
        levels, scores = lookup(centres, buckets), buckets.unsigned()
        found += [seam.histogram(values, buckets), seam.score_histogram(values, gradient, scores)[0]]
        for cut in (Cut(0.9, prune=0.1), Cut(0.9, 0.5, 0.01, "sensitivity")):
            found.append(seam.tally(values, gradient, cut, buckets, base, 3).counts)
            codes, kept = seam.assign(values, gradient, cut, levels, buckets)
            seam.gather(codes, table(centres), kept, out := torch.empty_like(values))
            found += [codes, kept, out.double().numpy()]
        for draws in (7, np.full(values.numel(), 0.25, np.float32)):
            of = Levels.of(centres, values.dtype, zero=True)
            found.append(assign_dithered(values, None, Cut(0.9), of, buckets, draws)[0])
    symbols = np.empty(values.numel(), np.uint8)
    escapes = LATTICE.quantise(values, 2.0**-7, 5, symbols)
    for ends in ((-math.inf, math.inf), (0.0, math.inf), (2.0**-9, 0.5), (-math.inf, -(2.0**-9))):
        LATTICE.dequantise(symbols, escapes, 2.0**-7, 5, out := torch.empty_like(values), ends)
        found.append(out.double().numpy())
    return [*found, symbols, escapes]


def here(values):
    """`coded` by the CPU's own side."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seam, "side", lambda _: cpu_path)
        patch.setattr(LATTICE, "side", lambda _: LATTICE.cpu_path)
        return coded(values)


def same(one, other):
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nothing_is_wrong_with_kernels_that_are_right(trial, caplog, dtype):
    """Of no dtype, at no address, whatever the size is; and each kind is tried before it is used."""
    for size in (1, 1040, 1501):
        values = (0.4 * torch.randn(size + 1, generator=torch.Generator().manual_seed(size))).to(dtype)
        for part in (values[1:], values[:size]):
            assert same(coded(part), here(part))
    assert not caplog.records


class Variant:
    """A kernel of which one that is compiled apart, for sizes that are multiples of 16, is wrong."""

    def __init__(self, kernel, output, fails):
        self.kernel, self.output, self.fails = kernel, output, fails

    def __getitem__(self, grid):
        def start(*given, **options):
            size = next(one for one in reversed(given) if type(one) is int)
            if size % 16 == 0 and self.fails:
                raise RuntimeError("PassManager::run failed")
            self.kernel[grid](*given, **options)
            if size % 16 == 0:
                given[self.output].view(-1)[::7] ^= 1

        return start


KERNELS = {
    "lattice quantise": ("lattice_kernels", "quantise", 1),
    "count": ("cell_kernels", "count", 2),
    "joint": ("cell_kernels", "joint", 5),
    "assign": ("cell_kernels", "assign", 4),
    "place": ("cell_kernels", "place", 2),
    "settle": ("dither_kernels", "settle", 1),
}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_is_wrong_or_fails_where_a_size_is_a_multiple_of_16_is_not_used(
    monkeypatch, caplog, trial, name, fails
):
    """Nearly all weights are of such a size, and Triton compiles kernels for them apart."""
    module, attribute, output = KERNELS[name]
    module = importlib.import_module(f"dynaquant_core.quantize.device.{module}")
    monkeypatch.setattr(module, attribute, Variant(getattr(module, attribute), output, fails))
    values = 0.4 * torch.randn(1040, generator=torch.Generator().manual_seed(0))
    assert same(coded(values), here(values))
    told = [record.getMessage() for record in caplog.records]
    assert told
    assert len(told) == len(set(told)) or name in ("count", "joint", "assign", "settle")  # of either buckets
    assert all(name.split()[-1] in one for one in told)
    assert same(coded(values), here(values))
    assert len(caplog.records) == len(told)


@pytest.mark.parametrize("values", [sparse(), torch.zeros(5000), -torch.zeros(3000), torch.zeros(0)])
@pytest.mark.parametrize("most", [1 << 30, 2048])
def test_zeros_and_many_launches_are_counted_as_on_the_cpu(monkeypatch, path, values, most):
    monkeypatch.setattr(path, "MOST", most)
    monkeypatch.setattr(path, "COPIES", 3)
    buckets, gradient = BitBuckets(4), values.roll(1)
    cut = Cut(protect_sensitivity=1.5, prune=0.02, prune_metric="sensitivity")
    base = (np.arange(values.numel()) % 3).astype(np.uint8)
    found = []
    for side in (cpu_path, path):
        monkeypatch.setattr(seam, "side", lambda tensor, side=side: side)
        counts, energy = seam.score_histogram(values, gradient, buckets.unsigned())
        joint = seam.tally(values, gradient, cut, buckets, base, 3)
        found.append([seam.histogram(values, buckets), counts, joint.rows, joint.counts, joint.pruned])
        np.testing.assert_allclose(energy.sum(), values.double().square().sum().item(), rtol=1e-12)
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def peak_of(function, *given):
    """(what a function gives, bytes that were held at once beside the tensors that it was given)."""
    known = [one.untyped_storage() for one in given if isinstance(one, torch.Tensor)]
    with Storages() as storages:
        storages._known.update(known)
        found = function(*given)
    return found, storages.peak


def require_equal_but_for_a_chunk(peaks):
    """Of a tensor and one of twice its size."""
    assert all(large < small + (1 << 13) for small, large in zip(*peaks, strict=True))


SIZES = (1 << 16, 1 << 17)


@pytest.mark.parametrize("side", ["device_path", "torch_path"])
def test_a_lattice_that_nearly_all_values_escape_from_takes_chunks_of_memory(monkeypatch, lattice_path, side):
    """Beside symbols and escapes themselves, which grow with the tensor."""
    side = lattice_path if side == "device_path" else lattice_torch_path
    monkeypatch.setattr(torch_path, "CHUNK", 1 << 13)
    rule, ends, peaks = (np.float32(0.001), np.uint64(5)), (np.float32(-9), np.float32(9)), []
    for size in SIZES:
        values = torch.randn(size, generator=torch.Generator().manual_seed(0))
        symbols, out = np.empty(size, np.uint8), torch.empty(size)
        escapes, coding = peak_of(side.quantise, values, *rule, symbols)
        parts = [slice(start, start + (1 << 13)) for start in range(0, size, 1 << 13)]
        pieces = [(part, int((symbols[: part.start] == 0).sum())) for part in parts]
        _, decoding = peak_of(side.dequantise, symbols, escapes, *rule, ends, out, pieces)
        assert escapes.size > 0.85 * size
        assert (out - values).abs().max() <= 0.00051
        peaks.append((coding - size - escapes.nbytes, decoding - size))
    require_equal_but_for_a_chunk(peaks)


def test_many_protected_weights_take_chunks_of_memory(monkeypatch, path):
    monkeypatch.setattr(torch_path, "CHUNK", 1 << 13)
    buckets, peaks = BitBuckets(6), []
    levels = lookup(np.array([-0.05, 0.05]), buckets)
    rules = Rules.of(Cut(protect_magnitude=0.1), buckets, levels, pruned=0)
    for size in SIZES:
        values = torch.randn(size, generator=torch.Generator().manual_seed(0))
        codes, out = np.empty(size, np.uint8), torch.empty(size)
        kept, coding = peak_of(path.assign, values, None, buckets.cells, rules, codes)
        exact = torch.from_numpy((kept.astype(np.uint32) << np.uint32(16)).view(np.float32))
        _, decoding = peak_of(path.place, codes, torch.zeros(256), exact, out, [])
        protected = values.abs() > 0.11
        assert protected.sum() > 0.85 * size
        assert torch.equal(out[protected], values[protected].bfloat16().float())
        peaks.append((coding - 2 * size, decoding - size))  # the codes there, and here
    require_equal_but_for_a_chunk(peaks)


@pytest.mark.parametrize("method", ["lattice", "dynaquant"])
def test_checkpoints_coded_by_kernels_in_many_threads_have_the_bits_of_the_cpu(
    tmp_path, monkeypatch, path, lattice_path, method
):
    monkeypatch.setenv("DYNAQUANT_THREADS", "4")
    stores = []
    for name in ("cpu", "kernels"):
        if name == "kernels":
            monkeypatch.setattr(seam, "side", lambda tensor: path)
            monkeypatch.setattr(LATTICE, "side", lambda device: lattice_path)
        stores.append(CheckpointStore(tmp_path / name, method=method))
        for step in (1, 2, 3):
            draw = torch.Generator().manual_seed(7)
            model = {f"{number}": torch.randn(60, 50, generator=draw) for number in range(6)}
            model = {key: one + 0.01 * step * one.roll(step, 0) for key, one in model.items()}
            model["half"] = model["1"].bfloat16()
            stores[-1].save(step, {"model": model})
    assert all(bits(stores[0].load(step)) == bits(stores[1].load(step)) for step in (1, 2, 3))
