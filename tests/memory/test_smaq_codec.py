"""What SmaQ's codec promises: size, error, no bias, chunks apart, zeros; and what it does with odd input."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.errors import ConfigError, StateMismatchError, UnsupportedStateError
from dynaquant_core.memory.smaq import SmaQ, sides, torch_path
from dynaquant_core.memory.smaq.chunks import CHUNK
from dynaquant_core.memory.smaq.statistics import ends_of, measure, spread_of_range
from tests.data import data_root

EXAMPLES = settings(max_examples=60, deadline=None)
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=stream(seed))


def errors(values, form, seed=1):
    """(|z|, error in standard deviations) of every value."""
    packed = form.encode(values, stream(seed))
    mean, std = packed.statistics.mean, packed.statistics.std
    exact = values.double().view(-1)
    return ((exact - mean) / std).abs(), (packed.decode().double().view(-1) - exact) / std


def test_a_million_normal_values_take_the_published_space():
    values = normal(1_000_000)
    packed = SmaQ().encode(values, stream())
    assert values.nbytes / packed.nbytes == pytest.approx(4.82, abs=0.03)
    outliers = int(packed.counts.long().sum())
    content = ((packed.count - outliers) * 6 + outliers * 8) / 8
    assert packed.nbytes < 1.005 * content
    assert (
        packed.nbytes
        == sum(part.nbytes for part in (packed.mask, packed.inner, packed.outer, packed.counts)) + 8
    )


@pytest.mark.parametrize("name", ["resnet20-12fca82f.th"])
def test_trained_weights_take_no_more_than_normal_values(name):
    state = torch.load(data_root() / "weights" / name, map_location="cpu", weights_only=True)["state_dict"]
    layers = [tensor for tensor in state.values() if tensor.numel() >= 2048]
    stored = sum(SmaQ().encode(tensor, stream()).nbytes for tensor in layers)
    assert sum(tensor.nbytes for tensor in layers) / stored > 4.8


@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_stay_within_the_gaps(dtype):
    values = normal(300_000).to(dtype)
    z, error = errors(values, SmaQ())
    slack = 1e-5 + torch.finfo(dtype).eps * 4
    inside, outside = z <= 1 - slack, (z > 1 + slack) & (z <= 2)
    assert error[inside].abs().max() < 2 / 31 + slack
    assert error[outside].abs().max() < 1 / 63 + slack
    tails = z > 2
    assert tails.any()
    assert (error[tails].abs() - (z[tails] - 2)).abs().max() < slack * 2, "clamped to the limit"


@EXAMPLES
@given(
    st.integers(2, 9),
    st.integers(3, 9),
    st.floats(0.05, 4),
    st.floats(0.05, 8),
    st.integers(0, 2**32),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e20]),
)
def test_errors_stay_within_the_gaps_of_any_widths(inlier_bits, outlier_bits, box, more, seed, scale):
    form = SmaQ(inlier_bits, outlier_bits, box=box, limit=box + more)
    z, error = errors(normal(5000, seed=seed) * scale, form, seed)
    inside, outside = form.levels.bounds
    assert (error[z < box * 0.9999].abs() < inside * 1.001 + 1e-5).all()
    reached = (z > box * 1.0001) & (z < form.limit)
    assert (error[reached].abs() < outside * 1.001 + 1e-5).all()


def test_rounding_is_unbiased():
    """A bias of 1% of a gap at any of 40 places would be found with a power over 99.9%.

    Each place is drawn 200,000 times: half a gap of spread at most makes a standard error of 0.11% of a gap
    or less.  The allowance of five is passed by chance in 3 of 100,000 runs; 1% is nine standard errors.
    """
    repeats = 200_000
    frame = torch.cat((torch.full((500,), -2.0), torch.full((500,), 2.0)))  # mean 0, spread 2
    form = SmaQ(box=0.5, limit=1.0)
    inside, outside = (2 * bound for bound in form.levels.bounds)
    places = torch.cat((torch.linspace(-0.99, 0.99, 20), torch.linspace(1.01, 1.99, 20)))
    for index, place in enumerate(places.tolist()):
        values = torch.cat((frame, torch.full((repeats,), place)))
        known = measure(frame, ends_of(frame), "exact", 0, stream())
        decoded = form.encode(values, stream(index), known).decode()[1000:].double()
        gap = inside if abs(place) < 1 else outside
        assert decoded.unique().numel() <= 2
        assert abs(float(decoded.mean()) - place) < 5 * (0.5 / math.sqrt(repeats)) * gap + 2**-15 * gap


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_map_of_probabilities_keeps_its_sums_and_every_device_has_its_bits(monkeypatch, dtype):
    """Rows of a softmax added up to 1.0145 where the lowest level was lifted after the draw."""
    values = torch.softmax(normal(4096, 128) * 2, dim=-1).to(dtype)
    form = SmaQ(limit=64.0)
    packed = form.encode(values, stream())
    decoded = packed.decode()
    assert float(decoded.min()) > 0
    assert float(decoded.double().sum() / values.double().sum()) == pytest.approx(1, abs=2e-3)
    monkeypatch.setattr(sides, "cpu_path", torch_path)
    other = form.encode(values, stream())
    assert torch.equal(other.decode(), decoded)
    assert torch.equal(other.inner, packed.inner)
    assert torch.equal(form.settle(values, stream())[0], decoded)


def test_another_stream_rounds_otherwise_and_the_same_one_alike():
    values = normal(10_000)
    one, again, other = (SmaQ().encode(values, stream(seed)).decode() for seed in (5, 5, 6))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("part", ["mask", "inner", "outer", "counts", "zeros"])
def test_codes_that_were_cut_off_are_refused(part):
    """Kernels would read beyond them, and give back what lies there."""
    values = torch.randn(80_000, generator=torch.Generator().manual_seed(0)).relu()
    packed = SmaQ().encode(values, torch.Generator())
    held = getattr(packed, part)
    for cut in (held[: len(held) // 3], held[:-1], torch.cat((held, held[:1]))):
        broken = replace(packed, **{part: cut.clone()})
        for read in (broken.decode, lambda broken=broken: broken.decode_chunk(0)):
            with pytest.raises(StateMismatchError, match="values need 3 counts of outliers"):
                read()
    if part == "counts":
        with pytest.raises(StateMismatchError, match="not what encode gave"):
            replace(packed, counts=-held).decode()


def test_what_comes_from_a_pickle_is_whole_or_refused():
    packed = SmaQ().encode(normal(80_000), stream())
    assert torch.equal(pickle.loads(pickle.dumps(packed)).decode(), packed.decode())
    cut = pickle.loads(pickle.dumps(replace(packed, inner=packed.inner[:-1].clone())))
    with pytest.raises(StateMismatchError, match="encode the tensor again"):
        cut.decode()


def test_chunks_decode_apart():
    values = normal(5 * CHUNK + 77)
    packed = SmaQ().encode(values, stream())
    whole = packed.decode()
    parts = [packed.decode_chunk(index) for index in reversed(range(packed.chunks))]
    assert torch.equal(torch.cat(parts[::-1]), whole)
    with pytest.raises(ConfigError, match="no chunk 6, expected 0 to 5"):
        packed.decode_chunk(6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (5, 7, 9)])
def test_shapes_and_dtypes_come_back(dtype, shape):
    values = normal(*shape).to(dtype) if shape else torch.tensor(0.1, dtype=dtype)
    decoded = SmaQ().encode(values, stream()).decode()
    assert (decoded.shape, decoded.dtype) == (values.shape, dtype)
    settled, _, _ = SmaQ().settle(values, stream())
    assert torch.equal(settled, decoded)


@pytest.mark.parametrize("value", [0.0, 1.5, -3e30, 1e-40])
def test_equal_values_come_back_as_they_are(value):
    packed = SmaQ().encode(torch.full((4096,), value), stream())
    assert torch.equal(packed.decode(), torch.full((4096,), value))
    assert packed.nbytes <= 8 + 4096 / 8


def test_a_spread_below_float32_counts_as_none():
    values = torch.tensor([1e-39, 2e-39, 3e-39])
    assert SmaQ(keep_zeros=False).encode(values, stream()).decode().unique().numel() == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_refused(bad, dtype):
    values = normal(2000).to(dtype)
    values[1234] = bad
    for act in (SmaQ().encode, SmaQ().settle):
        with pytest.raises(UnsupportedStateError, match="holds NaN, infinity"):
            act(values, stream())


@pytest.mark.parametrize(
    "values", [torch.arange(9), torch.ones(9, dtype=torch.complex64), torch.eye(3).to_sparse()]
)
def test_what_is_not_floating_and_dense_is_refused(values):
    with pytest.raises(UnsupportedStateError, match="cannot be coded"):
        SmaQ().encode(values, stream())


def test_values_beyond_float32_are_refused():
    with pytest.raises(UnsupportedStateError, match="beyond float32"):
        SmaQ().encode(torch.tensor([1e300, 0.0], dtype=torch.float64), stream())


@pytest.mark.parametrize(
    "given",
    [
        {"inlier_bits": 1},
        {"inlier_bits": 10},
        {"outlier_bits": 2},
        {"outlier_bits": 6.0},
        {"inlier_bits": 6.0},
        {"inlier_bits": [6]},
        {"box": True},
        {"box": 0.0},
        {"box": math.nan},
        {"limit": 1.0},
        {"limit": math.inf},
        {"statistics": "median"},
        {"sample": 1},
        {"keep_zeros": 2},
    ],
)
def test_settings_out_of_range_are_refused(given):
    assert SmaQ().levels == SmaQ(6, 8).levels  # which were made, and are equal to some of these
    with pytest.raises(ConfigError, match=next(iter(given))):
        SmaQ(**given)


def test_a_generator_is_asked_for():
    with pytest.raises(ConfigError, match=r"expected a torch.Generator on the CPU"):
        SmaQ().encode(normal(10), 7)


# -- zeros and signs ------------------------------------------------------------------------------


@EXAMPLES
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.01, 0.5, 0.99]))
def test_a_rectified_map_keeps_its_zeros_and_signs(seed, share):
    values = normal(4000, seed=seed).abs()
    values[torch.rand(4000, generator=stream(seed)) < share] = 0
    packed = SmaQ().encode(values, stream(seed))
    assert torch.equal(packed.decode() > 0, values > 0)
    assert torch.equal(SmaQ().settle(values, stream(seed))[0], packed.decode())


def test_zeros_make_a_rectified_map_smaller():
    values = normal(100_000).relu()
    kept, published = (SmaQ(keep_zeros=keep).encode(values, stream()) for keep in (True, False))
    assert values.nbytes / kept.nbytes > 7
    assert (published.decode()[values == 0] != 0).all()


def test_a_few_zeros_among_signed_values_cost_nothing():
    values = normal(100_000)
    values[::1000] = 0
    assert SmaQ().encode(values, stream()).zeros is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("start", [0, 1, 16383, 99_985])
def test_a_blank_row_among_signed_values_stays_blank(dtype, start):
    values = normal(100_000).to(dtype)
    values[start : start + 15] = 0
    decoded = SmaQ().encode(values, stream()).decode()
    assert torch.equal(decoded == 0, values == 0)
    assert torch.equal(SmaQ().settle(values, stream())[0], decoded)


# -- second moments -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_second_moments_stay_positive_and_near(dtype):
    values = (torch.exp(normal(50_000) * 4) * 1e-9).to(dtype)
    values[:20_000] = 0
    decoded = SmaQ().second_moments().encode(values, stream()).decode()
    assert torch.equal(decoded > 0, values > 0)
    octaves = (decoded[20_000:].double() / values[20_000:].double()).log2().abs()
    assert octaves.quantile(0.99) < 0.5, "two gaps of the logarithm's 5.8 octaves of spread"
    with pytest.raises(UnsupportedStateError, match="takes values from 0"):
        SmaQ(logarithm=True).encode(normal(100), stream())


# -- statistics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sample", "range"])
def test_cheaper_statistics_come_near(method):
    values = normal(200_000) * 3 + 5
    found = SmaQ(statistics=method, sample=4096).encode(values, stream()).statistics
    assert found.mean == pytest.approx(5, abs=0.25), "five standard errors of a sample of 4096"
    assert found.std == pytest.approx(3, rel=0.2)


@pytest.mark.parametrize("count", [10, 1000, 100_000])
def test_the_range_is_calibrated(count):
    """The mean over many samples is right to 1% and five of its standard errors."""
    samples = torch.randn(max(40, 100_000 // count), count, generator=stream(count))
    found = [spread_of_range(float(row.max() - row.min()), count) for row in samples]
    noise = torch.tensor(found).std() / math.sqrt(len(found))
    assert sum(found) / len(found) == pytest.approx(1, abs=0.01 + 5 * float(noise))


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_exact_statistics_are_exact(shift):
    values = (normal(3_000_001).double() + shift).float()
    found = measure(values, ends_of(values), "exact", 0, stream())
    assert found.mean == pytest.approx(float(values.double().mean()), rel=1e-6, abs=1e-6)
    assert found.std == pytest.approx(float(values.double().std(correction=0)), rel=1e-6)
