"""Two-bit codes: the published example, kernels against twins and torch, nothing lost over many steps."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.comm import two_bit
from dynaquant_core.comm.two_bit import TwoBitSettings, codes, kernels
from dynaquant_core.errors import ConfigError, StateMismatchError, UnsupportedStateError
from tests.reference import two_bit_twins as twins
from tests.reference.two_bit_steps import Sender, as_bytes, decoded, reduced

EXAMPLES = settings(max_examples=60, deadline=None)
ANY = st.floats(width=32, allow_subnormal=True)
COUNTS = st.integers(0, 70)
LIMIT = st.sampled_from([0.5, 0.1, 1e-6, 3.0, 1e30]).map(lambda value: float(np.float32(value)))


@st.composite
def steps(draw, elements=ANY, most=4):
    """A count and the gradients of some steps, float32[steps, count]."""
    shape = draw(st.integers(1, most)), draw(COUNTS)
    return draw(hnp.arrays(np.float32, shape, elements=elements))


def same(left, right):
    np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


def test_the_published_example():
    gradient = torch.zeros(16)
    gradient[[1, 4]], gradient[[3, 7]] = 0.5, -0.5
    packed = two_bit.encode(torch.zeros(16), gradient, 0.5, 0.5)
    assert bytes(packed.tolist()) == bytes.fromhex("32 C2 00 00")
    same(two_bit.decode_sum(packed[None], 16, 0.5, 0.5), gradient)
    assert two_bit.packed_bytes(16) == 4


def test_predefined_steps():
    """Worked by hand: 0.3 waits, 0.3 more goes out as 0.5 and leaves 0.1; -0.6 goes out, -0.1 stays."""
    residual = torch.zeros(2)
    for gradient, sent, left in [
        ([0.3, 2.0], [0.0, 0.5], [0.3, 1.5]),
        ([0.3, 0.0], [0.5, 0.5], [0.1, 1.0]),
        ([-0.7, 0.0], [-0.5, 0.5], [-0.1, 0.5]),
        ([0.0, 0.0], [0.0, 0.5], [-0.1, 0.0]),
    ]:
        packed = two_bit.encode(residual, torch.tensor(gradient), 0.5, 0.5)
        same(two_bit.decode_sum(packed[None], 2, 0.5, 0.5), np.float32(sent))
        np.testing.assert_allclose(residual.numpy(), left, atol=1e-6)


@EXAMPLES
@given(steps(), LIMIT, LIMIT)
def test_every_path_is_the_step_by_step_reference(gradients, above, below):
    count = gradients.shape[1]
    by_kernel, by_torch = torch.zeros(count), torch.zeros(count)
    sender = Sender(count, above, below)
    for gradient in torch.from_numpy(gradients):
        told = sender.push(gradient.tolist())
        packed = codes.encode(by_kernel, gradient, above, below)
        assert bytes(packed.tolist()) == as_bytes(told)
        same(codes.encode_by_torch(by_torch, gradient, above, below), packed)
        same(by_kernel, np.float32(sender.residual))
        same(by_torch, by_kernel)
        same(codes.decode_sum(packed[None], count, above, below), np.float32(decoded(told, sender)))


@EXAMPLES
@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(0, 9))), LIMIT, LIMIT, st.integers(1, 5))
def test_decoding_adds_in_order_on_every_path(gathered, above, below, divisor):
    gathered = np.repeat(gathered, 4, axis=1)  # whole words
    count = 4 * gathered.shape[1]
    table = np.array([0, np.nan, -below, above], np.float32)
    outs = [np.empty(count, np.float32) for _ in range(2)]
    for module, out in zip((kernels, twins), outs, strict=True):
        module.decode_sum(gathered, table, np.float32(divisor), out)
    same(*outs)
    tensor = torch.from_numpy(gathered)
    same(codes.decode_sum(tensor, count, above, below, divisor), outs[0])
    same(codes.decode_by_torch(tensor, count, above, below, divisor), outs[0])


@EXAMPLES
@given(hnp.arrays(np.float32, (2, 64), elements=ANY), LIMIT, LIMIT, st.sampled_from([4, 20, 64, 80]))
def test_encoding_is_its_twin(values, above, below, block):
    """Whether blocks divide what is coded or not."""
    limits = np.float32(above), np.float32(below)
    found, scratch = [], np.empty(block, np.uint8)
    for encode in (partial(kernels.encode, codes=scratch, words=scratch.view("<u4")), twins.encode):
        residual, packed = np.nan_to_num(values[0]), np.empty(16, np.uint8)
        encode(residual, values[1], *limits, packed=packed)
        found.append((residual, packed))
    same(found[0][0], found[1][0])
    same(found[0][1], found[1][1])


@EXAMPLES
@given(st.data(), st.integers(1, 4), LIMIT.filter(lambda value: value < 100))
def test_nothing_is_lost(data, ranks, limit):
    """What was received plus what the ranks hold is the sum of their gradients, to float32 rounding."""
    numbers = st.floats(-1000, 1000, width=32)
    gradients = data.draw(hnp.arrays(np.float32, (ranks, 30, 20), elements=numbers))
    residuals = torch.zeros(ranks, 20)
    received = np.zeros(20)
    for step in range(30):
        rows = [
            codes.encode(residuals[r], torch.from_numpy(gradients[r, step]), limit, limit)
            for r in range(ranks)
        ]
        received += codes.decode_sum(torch.stack(rows), 20, limit, limit).double().numpy()
    exact = gradients.astype(np.float64).sum((0, 1))
    held = received + residuals.double().numpy().sum(0)
    # each step rounds a sum and a difference on every rank, and the received sum once a rank
    largest = np.abs(gradients.astype(np.float64)).sum((0, 1)) + 30 * ranks * limit
    assert (np.abs(held - exact) <= 30 * 3 * ranks * 2.0**-24 * largest + 1e-30).all()


def test_many_elements_over_threads(monkeypatch):
    """Slices of several threads meet at bytes, and the odd elements behind them are not forgotten."""
    monkeypatch.setenv("DYNAQUANT_THREADS", "3")
    count = 4 * codes.SLICE * 3 + 3
    draw = torch.Generator().manual_seed(0)
    gradient = torch.randn(count, generator=draw)
    residuals = torch.zeros(2, count)
    packed = codes.encode(residuals[0], gradient, 0.5, 0.25)
    same(packed, codes.encode_by_torch(residuals[1], gradient, 0.5, 0.25))
    same(residuals[0], residuals[1])
    rows = torch.stack([packed, packed.flip(0)])
    same(codes.decode_sum(rows, count, 0.5, 0.25, 2), codes.decode_by_torch(rows, count, 0.5, 0.25, 2))


@pytest.fixture
def default_dtype():
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_added_to_a_residual_of_float32(dtype):
    gradient = torch.linspace(-1, 1, 33).to(dtype)
    residual, like = torch.zeros(33), torch.zeros(33)
    for _ in range(3):
        same(codes.encode(residual, gradient, 0.5, 0.5), codes.encode(like, gradient.float(), 0.5, 0.5))
    same(residual, like)


def test_codes_do_not_hang_on_the_default_dtype(default_dtype):
    threshold = TwoBitSettings(threshold=0.1).threshold
    residual = torch.zeros(4, dtype=torch.float32)
    codes.encode_by_torch(residual, torch.full((4,), 0.25, dtype=torch.float32), threshold, threshold)
    assert residual.tolist() == [float(np.float32(0.25) - np.float32(0.1))] * 4


def test_what_is_not_finite_is_told_and_not_kept():
    residual = torch.full((5,), 0.25)
    gradient = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.25, 0.0])
    packed = two_bit.encode(residual, gradient, 0.5, 0.5)
    assert residual.tolist() == [0.25, 0.25, 0.25, 0.0, 0.25]
    out = two_bit.decode_sum(torch.stack([packed, torch.zeros_like(packed)]), 5, 0.5, 0.5)
    assert out.isnan().tolist() == [True, True, True, False, False]
    assert out[3:].tolist() == [0.5, 0.0]


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_gradients_that_are_no_floats(dtype):
    residual = torch.zeros(4)
    with pytest.raises(UnsupportedStateError, match="expected a dense one of float32, bfloat16"):
        two_bit.encode(residual, torch.ones(4).to(dtype), 0.5, 0.5)
    with pytest.raises(UnsupportedStateError, match="sparse"):
        two_bit.encode(residual, torch.ones(4).to_sparse(), 0.5, 0.5)
    assert residual.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    "residual", [torch.zeros(3), torch.zeros(4).double(), torch.zeros(2, 2), torch.zeros(8)[::2]]
)
def test_residuals_that_do_not_fit(residual):
    with pytest.raises(StateMismatchError, match=r"expected float32\[4\]"):
        two_bit.encode(residual, torch.ones(4), 0.5, 0.5)


def test_codes_of_another_length():
    with pytest.raises(StateMismatchError, match="cannot hold 17 elements"):
        two_bit.decode_sum(torch.zeros((2, 4), dtype=torch.uint8), 17, 0.5, 0.5)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.float32])
def test_codes_that_are_no_bytes_are_refused(dtype):
    """A negative one would be looked up in front of the table, where memory may be nobody's."""
    with pytest.raises(StateMismatchError, match=r"expected torch\.uint8"):
        two_bit.decode_sum(torch.full((1, 4), -56).to(dtype), 16, 0.5, 0.5)


def test_the_reference_itself_on_the_published_example():
    sender = Sender(8, 0.5)
    assert as_bytes(sender.push([0, 0.5, 0, -0.5, 0.5, 0, 0, -0.5])) == bytes.fromhex("32 C2 00 00")
    pair = [Sender(2, 0.5), Sender(2, 0.5)]
    assert reduced(pair, [[0.6, -0.6], [0.2, -0.7]]) == [0.25, -0.5]


@pytest.mark.parametrize(
    "limits", [(0.0, 0.5), (float("nan"), 0.5), (0.5, -0.5), (float("inf"), 0.5), (1e-50, 0.5), (0.5, 1e50)]
)
def test_thresholds_that_say_nothing_are_refused(limits):
    """As float32 has them, by senders and by receivers, which would decode zeros and NaN from them."""
    residual = torch.zeros(4)
    with pytest.raises(ConfigError, match="above 0 and finite in float32"):
        codes.encode(residual, torch.ones(4), *limits)
    assert not residual.any()
    with pytest.raises(ConfigError, match="above 0 and finite in float32"):
        codes.decode_sum(torch.zeros((1, 4), dtype=torch.uint8), 4, *limits)


@pytest.mark.parametrize("count", [31, 32, 33, 63, 64, 1000])
def test_a_device_works_in_pieces_and_sends_the_same(monkeypatch, count):
    gradients = torch.randn(3, count, generator=torch.Generator().manual_seed(count))
    whole = [codes.encode_by_torch(torch.zeros(count), one, 0.5, 0.25) for one in gradients]
    sums = codes.decode_by_torch(torch.stack(whole), count, 0.5, 0.25, 3.0)
    monkeypatch.setattr(codes, "DEVICE_PIECE", 8)
    residuals = torch.zeros(3, count)
    sent = [codes.encode_by_torch(*pair, 0.5, 0.25) for pair in zip(residuals, gradients, strict=True)]
    for one, other in zip(sent, whole, strict=True):
        same(one, other)
    same(codes.decode_by_torch(torch.stack(sent), count, 0.5, 0.25, 3.0), sums)
    kept = [codes.decode_by_torch(one[None], count, 0.5, 0.25, 1.0) for one in sent]
    torch.testing.assert_close(residuals + torch.stack(kept), gradients)


def test_a_residual_on_another_device_is_refused():
    with pytest.raises(StateMismatchError, match="on cpu and the gradient on meta"):
        two_bit.encode(torch.zeros(4), torch.zeros(4, device="meta"), 0.5, 0.5)
