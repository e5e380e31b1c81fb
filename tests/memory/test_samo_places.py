"""SAMO's passes over vectors as a device makes them: what the processor's own give."""

import pytest
import torch
from torch.nn.utils import get_total_norm

from dynaquant_core.memory.samo import finite, places
from dynaquant_core.memory.samo.gradients import Collector


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 40])
def test_expanding_in_pieces_writes_every_place(monkeypatch, kept):
    monkeypatch.setattr(places, "_CHUNK", 8)
    index = torch.randperm(64, generator=torch.Generator().manual_seed(kept))[:kept].sort().values.int()
    values, flat, other = torch.randn(kept), torch.full((64,), 9.0), torch.zeros(64)
    places.expand(values, index, flat)
    places.scatter_by_torch(other, index, values)
    assert torch.equal(flat, other)


@pytest.mark.parametrize("total", [finite.sum_of_sums, get_total_norm])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_value_that_is_no_number_shows_in_both_totals(total, bad):
    """`all_finite` goes by the sum on a processor, by the norm on a device; infinities cancel in neither."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensors = [torch.randn(1000).to(dtype), torch.full((5,), 0.5, dtype=dtype)]
        assert total(tensors).isfinite()
        tensors[0][17], tensors[1][2] = bad, -bad
        assert not total(tensors).isfinite()


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), -float("inf")])
def test_looking_as_a_scaler_does_finds_what_is_no_number_and_keeps_all_bits(bad, count):
    """Of values whose sum and whose norm overflow as well."""
    tensors = [3e38 * torch.ones(3, 4), torch.tensor([1e-45, -0.0, 0.1]), torch.zeros(0)] * count
    if bad is not None:
        tensors[-2][2] = bad
    before = [one.clone() for one in tensors]
    assert bool(finite.found_bad(tensors)) == (bad is not None)
    assert all(
        torch.equal(one.view(torch.int32), other.view(torch.int32))
        for one, other in zip(tensors, before, strict=True)
    )


@pytest.mark.parametrize("scale", [1024.0, 3.0, 2.0**-20, 1e19])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(60,), (6, 10), (0,)])
def test_unscaling_in_one_product_gives_the_bits_of_a_cast_and_a_product(scale, dtype, shape):
    """A number, or a factor without dimensions, would be multiplied with in half precision."""
    values = torch.randn(60) * 10.0 ** torch.arange(-9, 6).repeat(4)
    values[:4] = torch.tensor([float("inf"), 6e-8, -0.0, 65504.0])
    gradient = values[: torch.Size(shape).numel()].to(dtype).view(shape)
    collector = Collector(scale)
    for _ in range(2):
        found, expected = collector._product(gradient), collector._unscaled(gradient)
        assert found.dtype == torch.float32
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
