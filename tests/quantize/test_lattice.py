"""The lattice's two halves: round trip for every dtype, the same bits on every path, and what is refused."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.errors import ConfigError, CorruptFileError, StateMismatchError, UnsupportedStateError
from dynaquant_core.quantize.lattice import cpu_path, dequantise, offset_key, quantise, round_step, torch_path
from tests.quantize.data import DISTRIBUTIONS, sample
from tests.reference import lattice_twins as twins
from tests.triton_here import device_side, why_not

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
KEYS = st.integers(0, 2**64 - 1)
EXAMPLES = settings(max_examples=60, deadline=None)
NONE = np.zeros(0, np.int32)
#: The module, which its own function hides in the package.
SEAM = sys.modules[quantise.__module__]


def coded(weights, step, key=5):
    symbols = np.full(weights.numel(), 77, np.uint8)
    return symbols, quantise(weights, step, key, symbols)


def decoded(symbols, escapes, step, like, key=5):
    out = torch.full_like(like, math.nan)
    dequantise(symbols, escapes, step, key, out)
    return out


#: Of values that are not finite, the interpreter's numpy.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

SIDES = ["cpu", "torch", "kernels"]


def side_of(name):
    """An implementation; that of kernels for a device where Triton's interpreter can run them."""
    known = {"cpu": cpu_path, "torch": torch_path}
    return known.get(name) or device_side("dynaquant_core.quantize.lattice.device_path")


@pytest.fixture(params=SIDES)
def one_side(request, monkeypatch):
    """Sends CPU tensors through one of the implementations, in pieces of odd sizes."""
    path = side_of(request.param)
    monkeypatch.setattr(SEAM, "side", lambda device: path)
    monkeypatch.setattr(SEAM, "PIECE", 777)
    monkeypatch.setattr(cpu_path, "SLICE", 501)
    monkeypatch.setattr(cpu_path, "BLOCK", 130)
    monkeypatch.setattr(cpu_path, "WIDE", 131)
    monkeypatch.setattr("dynaquant_core.quantize.torch_path.CHUNK", 1001)
    return request.param


def bound(weights, step, dtype):
    """How far a decoded weight may be: half a step, float32's roundings, and the dtype's own."""
    reach = step / 2 * (1 + 1e-6) + np.abs(weights) * 2.0**-22
    own = torch.finfo(dtype)
    return reach + ((np.abs(weights) + reach) * own.eps / 2 + own.smallest_normal if own.bits < 32 else 0)


@EXAMPLES
@given(
    hnp.arrays(np.float32, st.integers(0, 300), elements=st.floats(-60000, 60000, width=32)),
    st.floats(0.001, 100).map(round_step),
    KEYS,
    st.sampled_from(DTYPES),
)
def test_a_weight_comes_back_within_half_a_step(values, step, key, dtype):
    weights = torch.from_numpy(values).to(dtype)
    symbols, escapes = coded(weights, step, key)
    out = decoded(symbols, escapes, step, weights, key)
    exact = weights.double().numpy()
    assert (np.abs(out.double().numpy() - exact) <= bound(exact, step, dtype)).all()
    assert (np.abs(escapes.astype(np.int64)) > 127).all()
    assert int((symbols == 0).sum()) == escapes.size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 5000])
def test_both_sides_are_the_definition(one_side, dtype, size):
    step, key = round_step(0.03), offset_key(2, "weight")
    weights = torch.from_numpy(sample("student", size)).to(dtype)
    symbols, escapes = coded(weights, step, key)
    k = twins.nearest(key, 0, weights.float().numpy(), step)
    within = np.abs(k) <= 127
    np.testing.assert_array_equal(symbols, np.where(within, k + 128, 0))
    np.testing.assert_array_equal(escapes, k[~within])
    exact = (k + twins.offsets(key, 0, size)) * np.float32(step)
    assert torch.equal(decoded(symbols, escapes, step, weights, key), torch.from_numpy(exact).to(dtype))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_sides_agree_on_every_distribution(name, dtype, monkeypatch):
    weights = torch.from_numpy(sample(name, 20_000)).to(dtype)
    weights = weights if weights.isfinite().all() else weights.clamp(-60000, 60000)
    step = round_step(max(float(weights.double().std()), 1e-3) * 0.37)
    found = []
    for path in map(side_of, SIDES if why_not() is None else SIDES[:2]):
        monkeypatch.setattr(SEAM, "side", lambda device, path=path: path)
        symbols, escapes = coded(weights, step)
        found.append((symbols, escapes, decoded(symbols, escapes, step, weights).double().numpy()))
    for ours, *others in zip(*found, strict=True):
        for theirs in others:
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none in this machine")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["normal", "student", "lognormal"])
def test_cuda_tensors_give_identical_symbols_and_bits(name, dtype):
    weights = torch.from_numpy(sample(name, 300_001)).to(dtype).clamp(-60000, 60000)
    for step in (2.0**-7, round_step(0.013), round_step(0.7)):
        here, there = coded(weights, step), coded(weights.cuda(), step)
        for ours, theirs in zip(here, there, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert torch.equal(decoded(*here, step, weights), decoded(*here, step, weights.cuda()).cpu())


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch):
    weights, step = torch.from_numpy(sample("student", 1_300_001)), round_step(0.03)
    found = []
    monkeypatch.setattr(SEAM, "PIECE", 100_001)
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("DYNAQUANT_THREADS", threads)
        symbols, escapes = coded(weights, step)
        found.append((symbols, escapes, decoded(symbols, escapes, step, weights).numpy()))
    for others in found[1:]:
        for ours, theirs in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_views_and_parameters_are_read_and_written(one_side):
    whole = torch.from_numpy(sample("normal", 3000)).view(60, 50)
    part, step = whole.t()[::2, :], round_step(0.1)
    symbols, escapes = coded(part, step)
    again = coded(part.contiguous(), step)
    np.testing.assert_array_equal(symbols, again[0])
    before = whole.clone()
    dequantise(symbols, escapes, step, 5, part)
    assert torch.equal(part, decoded(symbols, escapes, step, part.contiguous()))
    assert torch.equal(whole.t()[1::2, :], before.t()[1::2, :])
    parameter = torch.nn.Parameter(torch.zeros(25, 60))
    dequantise(symbols, escapes, step, 5, parameter)
    assert torch.equal(parameter.detach(), decoded(symbols, escapes, step, parameter.detach()))
    np.testing.assert_array_equal(coded(torch.nn.Parameter(before.t()[::2, :]), step)[0], symbols)


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [
        (torch.float16, 65504.0),
        (torch.bfloat16, 3.3895313892515355e38),
        (torch.float32, 3.4028234663852886e38),
        (torch.float64, 3.4028234663852886e38),
    ],
)
@pytest.mark.parametrize("steps", [2, 90, 1000])
def test_what_was_finite_stays_finite(one_side, dtype, largest, steps):
    weights = torch.full((4000,), largest, dtype=dtype) * torch.tensor([1.0, -1.0]).to(dtype).repeat(2000)
    step = round_step(largest / steps)
    symbols, escapes = coded(weights, step)
    out = decoded(symbols, escapes, step, weights)
    assert out.isfinite().all()
    assert float(out.abs().max()) == largest
    assert (out.sign() == weights.sign()).all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, 1e30, -(2.0**31)])
@pytest.mark.parametrize("place", [0, 1500, 2999])
def test_what_does_not_fit_is_left_to_the_caller(one_side, bad, place):
    weights = torch.from_numpy(sample("narrow", 3000))
    weights[place] = bad
    assert coded(weights, 1.0)[1] is None
    assert coded(weights.double() * 1e200, 1.0)[1] is None


def test_the_widest_escapes_come_back(one_side):
    widest = 2.0**31 - 128
    weights = torch.tensor([widest, -widest, 0.0, 128.6, -128.6, 126.4, -126.4])
    symbols, escapes = coded(weights, 1.0)
    assert escapes[:2].tolist() == [2**31 - 128, 128 - 2**31]
    assert (symbols == 0).tolist() == [True, True, False, True, True, False, False]
    assert torch.equal(decoded(symbols, escapes, 1.0, weights)[:2], weights[:2])


def test_a_decoded_tensor_has_the_same_symbols_again():
    weights, step = torch.from_numpy(sample("student", 5000)), round_step(0.03)
    symbols, escapes = coded(weights, step)
    again = coded(decoded(symbols, escapes, step, weights), step)
    np.testing.assert_array_equal(symbols, again[0])
    np.testing.assert_array_equal(escapes, again[1])


def test_flushing_subnormal_numbers_changes_no_bit(one_side):
    step = round_step(2.0**-100)
    weights = torch.cat((torch.from_numpy(sample("normal", 500)) * 1e-29, torch.full((500,), 1e-40)))
    plain = coded(weights, step)
    there = decoded(*plain, step, weights)
    torch.set_flush_denormal(True)
    try:
        flushed = coded(weights, step)
        again = decoded(*plain, step, weights)
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(plain[0], flushed[0])
    assert torch.equal(there.view(torch.int32), again.view(torch.int32))


@pytest.mark.parametrize("step", [0.0, -1.0, math.inf, math.nan, 1e-40, 2.0**101, 1.001])
def test_what_is_no_step_is_refused(step):
    with pytest.raises(ConfigError, match="no step of a lattice"):
        coded(torch.ones(3), step)
    out = torch.full((3,), 7.0)
    with pytest.raises(CorruptFileError, match="no step of a lattice"):
        dequantise(np.ones(3, np.uint8), NONE, step, 5, out)
    assert (out == 7.0).all()


@pytest.mark.parametrize(
    ("symbols", "escapes", "message"),
    [
        ([1, 0, 3], [], "1 symbols are escapes, found 0"),
        ([1, 2, 3], [500], "0 symbols are escapes, found 1"),
        ([0, 0, 3], [500, -127], "within 127 of zero"),
    ],
)
def test_escapes_that_fit_nothing_are_refused_and_write_nothing(symbols, escapes, message):
    out = torch.full((3,), 7.0)
    with pytest.raises(CorruptFileError, match=message):
        dequantise(np.array(symbols, np.uint8), np.array(escapes, np.int32), 1.0, 5, out)
    assert (out == 7.0).all()


def test_hostile_escapes_decode_to_something_finite(one_side):
    out = torch.empty(3)
    escapes = np.array([-(2**31), 2**31 - 1, 128], np.int32)
    dequantise(np.zeros(3, np.uint8), escapes, 2.0**100, 5, out)
    assert out.isfinite().all()


def test_foreign_shapes_and_dtypes_are_refused():
    with pytest.raises(UnsupportedStateError):
        coded(torch.ones(3, dtype=torch.int32), 1.0)
    for room in (np.zeros(2, np.uint8), np.zeros(3, np.int8), np.zeros((3, 1), np.uint8)):
        with pytest.raises(StateMismatchError, match="room for 3 symbols"):
            quantise(torch.ones(3), 1.0, 5, room)
    for out in (torch.empty(4), torch.empty(3, dtype=torch.int32)):
        with pytest.raises(StateMismatchError, match="3 symbols cannot"):
            dequantise(np.ones(3, np.uint8), NONE, 1.0, 5, out)
    for key in (-1, 2**64):
        with pytest.raises(ConfigError, match="key must be"):
            coded(torch.ones(3), 1.0, key)
        with pytest.raises(ConfigError, match="key must be"):
            decoded(np.ones(3, np.uint8), NONE, 1.0, torch.ones(3), key)
