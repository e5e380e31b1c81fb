"""How far tensors moved, what moved most, and where: against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.errors import CorruptFileError
from dynaquant_core.quantize.change import largest, moved, row_count, row_norms
from dynaquant_core.quantize.csr import csr, index_dtype, places

EXAMPLES = settings(max_examples=80, deadline=None)
SCORES = hnp.arrays(np.float32, st.integers(0, 12), elements=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5]))


@EXAMPLES
@given(st.lists(SCORES, max_size=4), st.integers(0, 40))
def test_largest_takes_the_first_of_a_stable_sort(scores, count):
    joined = np.concatenate([*scores, np.zeros(0, np.float32)])
    first = [place for place in np.argsort(-joined, kind="stable")[:count] if joined[place] > 0]
    marks = largest(scores, count)
    assert [mark.size for mark in marks] == [part.size for part in scores]
    assert sorted(first) == np.flatnonzero(np.concatenate([*marks, np.zeros(0, bool)])).tolist()


@EXAMPLES
@given(hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-9, 9, width=16)), st.integers(1, 12))
def test_row_norms_are_sums_of_squares(change, length):
    rows = [change[begin : begin + length].astype(float) for begin in range(0, change.size, length)]
    assert len(rows) == row_count(change.size, length)
    np.testing.assert_allclose(row_norms(change, length), [row @ row for row in rows], rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_moved_is_exact_where_it_can_be_and_finite_where_it_cannot(dtype):
    live, base = torch.tensor([[1.5, -2.0], [0.25, 3.0]]).to(dtype).T, torch.tensor([1.0, 0.25, -2.0, 1.0])
    assert moved(live, base.to(dtype)).tolist() == [0.5, 0.0, 0.0, 2.0]
    largest_value = torch.full((2,), min(torch.finfo(dtype).max, 3.4e38), dtype=dtype)
    change = moved(largest_value, -largest_value)
    assert change.dtype == np.float32
    assert np.isfinite(change).all()
    assert (change > 0).all()


@EXAMPLES
@given(st.integers(1, 6), st.integers(1, 300), st.data())
def test_places_come_back(rows, columns, data):
    mark = data.draw(hnp.arrays(np.bool_, rows * columns))
    found = np.flatnonzero(mark)
    counts, gaps = csr(found, rows=rows, columns=columns)
    assert counts.dtype == gaps.dtype == index_dtype(columns)
    assert counts.tolist() == mark.reshape(rows, columns).sum(axis=1).tolist()
    assert places(counts, gaps, columns=columns).tolist() == found.tolist()


def test_a_gap_that_leads_out_of_its_row_is_refused():
    with pytest.raises(CorruptFileError, match="column 5 of a row of 5"):
        places(np.uint8([2, 0]), np.uint8([1, 3]), columns=5)
