"""Which tensors share memory, against what writing to one of them changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynaquant_core.state import overlapping

SIDE = 8
PART = st.tuples(st.integers(0, SIDE - 1), st.integers(1, SIDE), st.integers(1, 3))
VIEW = st.tuples(PART, PART, st.booleans())


def view(buffer: torch.Tensor, rows: tuple[int, int, int], columns: tuple[int, int, int]) -> torch.Tensor:
    parts = [slice(first, first + count * step, step) for first, count, step in (rows, columns)]
    return buffer[tuple(parts)]


@given(st.lists(VIEW, min_size=1, max_size=5))
def test_those_are_named_that_a_write_to_another_changes(drawn: list) -> None:
    buffer = torch.zeros(SIDE, SIDE)
    views = {str(number): view(buffer, *each[:2]) for number, each in enumerate(drawn)}
    views = {name: each.t() if drawn[int(name)][2] else each for name, each in views.items()}
    wanted = set()
    for name, each in views.items():
        buffer.zero_()
        each.fill_(1.0)
        wanted |= {other for other, seen in views.items() if other != name and bool(seen.any())}
    assert overlapping(views) == wanted


@pytest.mark.parametrize("other", [torch.float16, torch.int32])
def test_repeated_places_and_other_dtypes(other: torch.dtype) -> None:
    row = torch.zeros(1, 4)
    assert overlapping({"rows": row.expand(3, 4), "beside": torch.zeros(4)}) == set()
    assert overlapping({"rows": row.expand(3, 4), "end": row[0, 3:]}) == {"rows", "end"}
    assert overlapping({"one": row, "same bytes": row.view(other)}) == {"one", "same bytes"}
    assert overlapping({"none": row[:, 4:], "whole": row}) == set()
