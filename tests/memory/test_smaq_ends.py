"""SmaQ keeps what it decodes inside of a tensor's own ends, without bias."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynaquant_core.memory.smaq import SmaQ
from dynaquant_core.memory.smaq.statistics import Statistics
from tests.memory.test_smaq_codec import EXAMPLES, normal, stream


@pytest.mark.parametrize("end", [-0.97, -1.5, 0.97, 1.5])  # in deviations: inside of the box, and outside
def test_rounding_is_unbiased_where_a_level_is_moved_to_an_end(end):
    """A bias of 1% of a gap at any of 12 places would be found with a power over 99.9%.

    As above: 200,000 draws a place, an allowance of five standard errors of 0.11% of a gap, which is exceeded
    by chance in one of 100,000 runs.  Where the lowest level is lifted after the draw, the lowest value comes
    back a quarter of a gap too high.
    """
    repeats, statistics, side = 200_000, Statistics(4.0, 2.0), math.copysign(1, end)
    inside, outside = (2 * bound for bound in SmaQ().levels.bounds)
    gap, last = inside if abs(end) < 1 else outside, 4 + 2 * end
    shares = [0.0, *torch.linspace(0.02, 2, 11).tolist()]
    for index, place in enumerate([last - side * gap * share for share in shares]):
        values = torch.cat((torch.tensor([last]), torch.full((repeats,), place)))
        decoded = SmaQ().encode(values, stream(index), statistics).decode().double()
        assert float((decoded * side).max()) <= float(values[0].double() * side)
        assert decoded.unique().numel() <= 3
        assert abs(float(decoded[1:].mean()) - place) < 5 * (0.5 / math.sqrt(repeats)) * gap + 2**-15 * gap


SHAPES = {
    "sigmoid": torch.sigmoid,
    "tanh": lambda values: 0.999 * torch.tanh(2 * values),
    "even": lambda values: values.sigmoid() * 5 - 7,
    "two values": lambda values: torch.where(values > 0, 0.3, -0.7),
    "normal": lambda values: values,
    "rectified": torch.relu,
    "few large": lambda values: values.exp() ** 4,
}


@EXAMPLES
@given(
    st.integers(0, 2**32),
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    st.sampled_from([SmaQ(), SmaQ(limit=4.0), SmaQ(3, 4, 0.5, 1.0), SmaQ(statistics="range")]),
)
def test_no_value_comes_back_from_beyond_a_tensors_ends(seed, shape, dtype, form):
    """The probability .99 that came back as more than 1 has a root, a logarithm, an arc sine of NaN."""
    values = SHAPES[shape](normal(3000, seed=seed).clamp(-2.5, 2.5)).to(dtype)
    packed = form.encode(values, stream(seed))
    decoded = packed.decode()
    assert values.min() <= decoded.min() <= decoded.max() <= values.max()
    assert torch.equal(form.settle(values, stream(seed))[0], decoded)
    assert form.settle(values, stream(seed))[1] == pytest.approx(packed.nbytes, abs=64)
