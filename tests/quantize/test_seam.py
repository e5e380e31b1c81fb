"""The seam: both sides give identical counts and codes; codes decode to what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dynaquant_core.errors import (
    ConfigError,
    CorruptFileError,
    StateMismatchError,
    UnsupportedStateError,
)
from dynaquant_core.quantize import cpu_path, seam, torch_path
from dynaquant_core.quantize.buckets import BitBuckets, LogBuckets
from dynaquant_core.quantize.codebook import lookup, table
from dynaquant_core.quantize.cut import NO_CUT, Cut
from dynaquant_core.quantize.flat import to_bfloat16
from dynaquant_core.quantize.importance import magnitude, sensitivity
from tests.quantize.data import DISTRIBUTIONS, sample
from tests.triton_here import device_side, why_not

SCHEMES = [BitBuckets(6), BitBuckets(9), LogBuckets(0.01)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def limit(scheme, near):
    """The threshold next to a value: the largest member of its bucket."""
    return float(scheme.limits[scheme.unsigned().bucket_of(np.float32(near))])


def some_cuts(scheme):
    return [
        NO_CUT,
        Cut(protect_magnitude=limit(scheme, 2.5), prune=limit(scheme, 0.1)),
        Cut(protect_sensitivity=limit(scheme, 0.02)),
        Cut(limit(scheme, 2.5), limit(scheme, 0.02), limit(scheme, 1e-4), "sensitivity"),
        Cut(protect_magnitude=-1.0),
        Cut(prune=math.inf),
    ]


def problem(name="normal", size=5000, dtype=torch.float32, seed=0):
    values = torch.from_numpy(sample(name, size, seed)).to(dtype)
    gradient = torch.from_numpy(sample("narrow", size, seed + 1))
    return values, gradient


def expected_codes(values, gradient, cut, levels, scheme):
    """Codes by the rules' own words, weight by weight."""
    weights = values.detach().reshape(-1).to(torch.float32).numpy()
    codes = levels[scheme.bucket_of(weights)]
    scores = np.abs(weights * gradient.reshape(-1).to(torch.float32).numpy())
    metric = np.abs(weights) if cut.prune_metric == "magnitude" else scores
    codes = np.where(metric <= cut.prune, 0, codes)
    protected = (np.abs(weights) > cut.protect_magnitude) | (scores > cut.protect_sensitivity)
    return np.where(protected, 1, codes).astype(np.uint8), weights[protected]


#: Of values that are not finite, the interpreter's numpy.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

SIDES = ["cpu", "torch", "kernels"]


def side_of(name):
    """A side of the seam; the one of kernels for a device where Triton's interpreter can run them."""
    known = {"cpu": cpu_path, "torch": torch_path}
    return known.get(name) or device_side("dynaquant_core.quantize.device.path")


@pytest.fixture(params=SIDES)
def one_side(request, monkeypatch):
    """Forces CPU tensors through one side of the seam."""
    found = side_of(request.param)
    monkeypatch.setattr(seam, "side", lambda tensor: found)
    monkeypatch.setattr(torch_path, "CHUNK", 1000)
    monkeypatch.setattr(cpu_path, "BLOCK", 1 << 10)
    monkeypatch.setattr(cpu_path, "SLICE", 1 << 9)
    monkeypatch.setattr(seam, "PIECE", 700)
    return request.param


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_follow_the_rules(one_side, scheme, which, dtype):
    values, gradient = problem(dtype=dtype)
    cut = some_cuts(scheme)[which]
    levels = lookup(np.linspace(-2, 2, 16), scheme)
    codes, protected = seam.assign(values, gradient, cut, levels, scheme)
    expected, kept = expected_codes(values, gradient, cut, levels, scheme)
    assert codes.dtype == np.uint8
    assert (codes == expected).all()
    assert (protected == torch.from_numpy(kept).to(torch.bfloat16).view(torch.uint16).numpy()).all()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_both_sides_agree_on_every_distribution(name, scheme, monkeypatch):
    values, gradient = problem(name, 20_000)
    levels = lookup(np.linspace(-2, 2, 8), scheme)
    base = np.random.default_rng(2).integers(0, 10, values.numel()).astype(np.uint8)
    cut = Cut(limit(scheme, 2.5), limit(scheme, 0.02), limit(scheme, 1e-4), "sensitivity")
    found = []
    for path in map(side_of, SIDES if why_not() is None else SIDES[:2]):
        monkeypatch.setattr(seam, "side", lambda tensor, path=path: path)
        joint = seam.tally(values, gradient, cut, scheme, base, 10)
        codes, protected = seam.assign(values, gradient, cut, levels, scheme)
        counts, energy = seam.score_histogram(values, gradient, scheme.unsigned())
        found.append((seam.histogram(values, scheme), counts, joint.rows, joint.counts, codes, protected))
        np.testing.assert_allclose(energy.sum(), (values.double() ** 2).sum().item(), rtol=1e-9)
    for ours, *others in zip(*found, strict=True):
        for theirs in others:
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none in this machine")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_cuda_tensors_give_identical_codes(scheme, dtype):
    values, gradient = problem(size=100_000, dtype=dtype)
    levels = lookup(np.linspace(-2, 2, 16), scheme)
    for cut in some_cuts(scheme):
        here = seam.assign(values, gradient, cut, levels, scheme)
        there = seam.assign(values.cuda(), gradient.cuda(), cut, levels, scheme)
        for ours, theirs in zip(here, there, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert (seam.histogram(values, scheme) == seam.histogram(values.cuda(), scheme)).all()
    out = torch.empty_like(values, device="cuda")
    seam.gather(here[0], table(np.linspace(-2, 2, 16)), here[1], out)
    again = torch.empty_like(values)
    seam.gather(here[0], table(np.linspace(-2, 2, 16)), here[1], again)
    assert torch.equal(out.cpu(), again)


@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_tally_is_the_joint_histogram_of_the_codes(one_side, scheme, which):
    values, gradient = problem(size=3000)
    cut = some_cuts(scheme)[which]
    levels = lookup(np.linspace(-2, 2, 16), scheme)
    codes, _ = seam.assign(values, gradient, cut, levels, scheme)
    base = np.random.default_rng(3).integers(0, 7, values.numel()).astype(np.uint8)
    for base_codes, base_levels in ((None, 1), (base, 7), (base, 34)):
        joint = np.zeros((18, base_levels), dtype=np.int64)
        np.add.at(joint, (codes, base if base_codes is not None else 0 * base), 1)
        for counts in (None, seam.histogram(values, scheme)):
            tally = seam.tally(values, gradient, cut, scheme, base_codes, base_levels, counts=counts)
            assert (tally.by_level(levels, 18) == joint).all()
            assert tally.total == values.numel()
            assert (tally.survivors > 0).all()
            assert (np.diff(tally.rows) > 0).all()


@pytest.mark.parametrize("most", [1, 32767, 32768, 70_000])
def test_a_tally_that_is_kept_counts_the_same_and_holds_no_table(most):
    values = torch.cat((torch.full((most,), 0.5), torch.linspace(-2, 2, 100)))
    scheme, base = BitBuckets(6), np.zeros(most + 100, dtype=np.uint8)
    cut = Cut(protect_magnitude=1.5, prune=0.1)
    levels = lookup(np.linspace(-2, 2, 16), scheme)
    tally = seam.tally(values, None, cut, scheme, base, 34)
    lean = tally.lean()
    assert (lean.by_level(levels, 18) == tally.by_level(levels, 18)).all()
    assert (lean.total, lean.survivors.max()) == (tally.total, tally.survivors.max())
    assert lean.counts.itemsize == (2 if tally.counts.max() < 2**15 else 4)
    assert all(part.base is None for part in (lean.counts, lean.pruned, lean.protected))


def test_without_a_rule_on_sensitivity_gradients_are_never_touched():
    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError(f"the gradient's {name} was asked for")

    values, _ = problem(size=300)
    scheme = BitBuckets(6)
    levels = lookup(np.array([-1.0, 1.0]), scheme)
    cut = Cut(protect_magnitude=2.0, prune=0.1)
    codes, _ = seam.assign(values, Untouchable(), cut, levels, scheme)
    assert (codes == seam.assign(values, None, cut, levels, scheme)[0]).all()
    assert seam.tally(values, Untouchable(), cut, scheme, codes, 4).total == 300


def test_a_rule_on_sensitivity_without_a_gradient_is_refused():
    values, gradient = problem(size=300)
    scheme = BitBuckets(6)
    with pytest.raises(ConfigError, match="gradient"):
        seam.assign(values, None, Cut(protect_sensitivity=1.0), lookup(np.ones(1), scheme), scheme)
    with pytest.raises(StateMismatchError, match="gradient has 299"):
        seam.tally(values, gradient[:-1], Cut(protect_sensitivity=1.0), scheme)


def test_scores_are_counted_with_their_energy(one_side):
    values, gradient = problem(size=2000, dtype=torch.bfloat16)
    scheme = BitBuckets(6, signed=False)
    counts, energy = seam.score_histogram(values, gradient, scheme)
    index = scheme.bucket_of(sensitivity(values, gradient).numpy())
    assert (counts == np.bincount(index, minlength=scheme.size)).all()
    squares = magnitude(values).double().numpy() ** 2
    np.testing.assert_allclose(energy, np.bincount(index, weights=squares, minlength=scheme.size), rtol=1e-12)


def test_broken_gradients_neither_prune_nor_crash(one_side):
    values = torch.tensor([1.0, -1.0, 1e30, 0.5])
    gradient = torch.tensor([math.nan, math.inf, 1e30, 0.0])
    scheme = BitBuckets(6)
    counts, _ = seam.score_histogram(values, gradient, scheme.unsigned())
    assert counts.sum() == 4
    assert counts[-1] == 3
    cut = Cut(protect_sensitivity=limit(scheme, 1.0), prune=limit(scheme, 0.1), prune_metric="sensitivity")
    codes, _ = seam.assign(values, gradient, cut, lookup(np.array([0.0]), scheme), scheme)
    assert codes.tolist() == [2, 1, 1, 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 2, 1999, 40_000])
def test_codes_decode_to_their_centres_and_protected_weights(one_side, dtype, size):
    values, _ = problem(size=size, dtype=dtype)
    scheme, centres = BitBuckets(6), np.linspace(-2, 2, 16)
    codes, protected = seam.assign(
        values, None, Cut(limit(scheme, 2.0), prune=0.05), lookup(centres, scheme), scheme
    )
    out = torch.full_like(values, math.nan)
    seam.gather(codes, table(centres), protected, out)
    expected = torch.from_numpy(table(centres)[codes])
    ones = torch.from_numpy(codes == 1)
    expected[ones] = values[ones].to(torch.float32).to(torch.bfloat16).to(torch.float32)
    assert torch.equal(out, expected.to(dtype))
    again = seam.assign(out, None, Cut(limit(scheme, 2.0), prune=0.05), lookup(centres, scheme), scheme)
    assert (again[0] == codes).all()


def test_decoding_writes_through_views_and_parameters(one_side):
    codes = np.arange(2, 8, dtype=np.uint8)
    none = np.zeros(0, dtype=np.uint16)
    matrix = torch.zeros(3, 4)
    seam.gather(codes, table(np.arange(6.0)), none, matrix.t()[::2, :])
    assert matrix.tolist() == [[0, 0, 3, 0], [1, 0, 4, 0], [2, 0, 5, 0]]
    parameter = torch.nn.Parameter(torch.zeros(2, 3))
    seam.gather(codes, table(np.arange(6.0)), none, parameter)
    assert parameter.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("dtype", "largest"), [(torch.float16, 65504.0), (torch.bfloat16, 3.3895313892515355e38)]
)
def test_decoding_never_overflows_to_infinity(one_side, dtype, largest):
    values = torch.tensor([3.4028234663852886e38, 65504.0, -3.4028234663852886e38])
    patterns = to_bfloat16(values.numpy().view(np.uint32))
    assert hex(patterns[0]) == "0x7f7f"
    out = torch.empty(3, dtype=dtype)
    seam.gather(np.ones(3, dtype=np.uint8), table(np.zeros(0)), patterns, out)
    assert out.isfinite().all()
    assert out[0].item() == largest
    seam.gather(np.full(3, 2, dtype=np.uint8), table(np.array([3.4e38])), patterns[:0], out)
    assert out[0].item() == largest


@pytest.mark.parametrize(
    ("codes", "levels", "protected", "message"),
    [
        ([2, 9], 4, [], "code 9 has no level"),
        ([1, 1], 4, [0x3F80], "2 codes say protected"),
        ([2, 2], 4, [0x3F80], "0 codes say protected"),
        ([1], 4, [0x7F80], "infinite or NaN"),
        ([0], 0, [], "code 0 has no level"),
    ],
)
def test_codes_that_fit_nothing_are_refused_and_write_nothing(codes, levels, protected, message):
    out = torch.full((len(codes),), 7.0)
    with pytest.raises(CorruptFileError, match=message):
        seam.gather(
            np.array(codes, dtype=np.uint8),
            np.zeros(levels, dtype=np.float32),
            np.array(protected, dtype=np.uint16),
            out,
        )
    assert (out == 7.0).all()


def test_foreign_shapes_are_refused():
    scheme = BitBuckets(6)
    codes = np.zeros(4, dtype=np.uint8)
    none = np.zeros(0, dtype=np.uint16)
    for out in (torch.empty(5), torch.empty(4, dtype=torch.int32)):
        with pytest.raises(StateMismatchError, match="4 codes"):
            seam.gather(codes, table(np.zeros(1)), none, out)
    with pytest.raises(ConfigError, match="lookup"):
        seam.assign(torch.ones(4), None, NO_CUT, lookup(np.ones(1), BitBuckets(7)), scheme)
    for base, levels in ((codes[:3], 2), (codes + np.uint8(2), 2), (codes.astype(np.int64), 2)):
        with pytest.raises(StateMismatchError, match="base codes"):
            seam.tally(torch.ones(4), None, NO_CUT, scheme, base, levels)
    with pytest.raises(UnsupportedStateError):
        seam.assign(torch.ones(4, dtype=torch.int32), None, NO_CUT, lookup(np.ones(1), scheme), scheme)


@pytest.mark.parametrize(
    "values", [torch.zeros(0), torch.zeros(6), torch.full((1,), 3.0), torch.full((9,), -1e-44)]
)
def test_degenerate_tensors_pass(one_side, values):
    scheme = BitBuckets(6)
    levels = lookup(np.array([-1.0, 1.0]), scheme)
    assert seam.tally(values, None, NO_CUT, scheme).total == values.numel()
    codes, protected = seam.assign(values, None, NO_CUT, levels, scheme)
    assert codes.size == values.numel()
    assert protected.size == 0
    assert seam.histogram(values, scheme).sum() == values.numel()
    counts, energy = seam.score_histogram(values, values, scheme.unsigned())
    assert counts.sum() == values.numel()
    assert energy.sum() == (values.double() ** 2).sum()


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch):
    values, gradient = problem(size=400_001)
    scheme = BitBuckets(6)
    cut, levels = some_cuts(scheme)[3], lookup(np.linspace(-2, 2, 16), scheme)
    found = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("DYNAQUANT_THREADS", threads)
        codes, protected = seam.assign(values, gradient, cut, levels, scheme)
        out = torch.empty_like(values)
        seam.gather(codes, table(np.linspace(-2, 2, 16)), protected, out)
        found.append(
            (codes, protected, out.numpy(), seam.tally(values, gradient, cut, scheme, codes, 18).counts)
        )
    for others in found[1:]:
        for ours, theirs in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(ours, theirs)
