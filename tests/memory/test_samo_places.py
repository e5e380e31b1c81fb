"""SAMO's passes over vectors as a device makes them: what the processor's own give."""

import pytest
import torch
from torch.nn.utils import get_total_norm

from dynaquant_core.memory.samo import finite, places


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
