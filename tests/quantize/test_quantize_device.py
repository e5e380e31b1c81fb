"""The kernels for a device beyond what the tests of the seam and the lattice ask of every side."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

from dynaquant_core import device_jit
from dynaquant_core.quantize import cpu_path, seam, torch_path
from dynaquant_core.quantize.buckets import BitBuckets
from dynaquant_core.quantize.codebook import lookup
from dynaquant_core.quantize.cut import Cut
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
def trial(path):
    """What tries both, forgetting what it found before and after."""
    found = importlib.import_module("dynaquant_core.quantize.device.trial")
    found._tried.cache_clear()
    yield found
    found._tried.cache_clear()


META = torch.device("meta")


def test_a_device_gets_kernels_where_they_compile_and_agree_and_operations_of_torch_elsewhere(
    monkeypatch, path, lattice_path, trial
):
    kernels, plain = (path, lattice_path), (torch_path, lattice_torch_path)
    for compiles, agrees, expected in ((True, True, kernels), (True, False, plain), (False, True, plain)):
        monkeypatch.setattr(device_jit, "compiles", lambda device, found=compiles: found)
        monkeypatch.setattr(trial, "agrees", lambda device, found=agrees: found)
        assert (seam.side(torch.empty(1, device=META)), LATTICE.side(torch.device("cuda"))) == expected
        assert seam.side(torch.empty(1)) is cpu_path


def test_the_trial_finds_nothing_wrong_with_kernels_that_are_right(trial, caplog):
    assert trial.agrees(torch.device("cpu"))
    assert not caplog.records


def off_by_one(found):
    return lambda *given: found(*given) + 1


def other_symbols(found):
    def quantise(flat, step, key, symbols):
        escapes = found(flat, step, key, symbols)
        symbols[-1] ^= 1
        return escapes

    return quantise


def other_codes(found):
    def settle(flat, codes, tables, draws):
        found(flat, codes, tables, draws)
        codes[-1] = 3

    return settle


@pytest.mark.parametrize(
    ("where", "name", "broken", "told"),
    [
        ("path", "count", off_by_one, "codes of torch.float32"),
        ("path", "settle", other_codes, "dithered codes"),
        ("device_path", "quantise", other_symbols, "symbols of torch.float32"),
        ("path", "place", lambda found: lambda *given: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_the_trial_says_once_what_a_compiler_got_wrong(monkeypatch, caplog, trial, where, name, broken, told):
    module = getattr(trial, where)
    monkeypatch.setattr(module, name, broken(getattr(module, name)))
    assert not trial.agrees(torch.device("cpu"))
    assert not trial.agrees(torch.device("cpu"))
    (record,) = caplog.records
    assert told in record.getMessage()


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
    rule, limit, peaks = (np.float32(0.001), np.uint64(5)), np.float32(9), []
    for size in SIZES:
        values = torch.randn(size, generator=torch.Generator().manual_seed(0))
        symbols, out = np.empty(size, np.uint8), torch.empty(size)
        escapes, coding = peak_of(side.quantise, values, *rule, symbols)
        parts = [slice(start, start + (1 << 13)) for start in range(0, size, 1 << 13)]
        pieces = [(part, int((symbols[: part.start] == 0).sum())) for part in parts]
        _, decoding = peak_of(side.dequantise, symbols, escapes, *rule, limit, out, pieces)
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
