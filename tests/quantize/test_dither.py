"""Dithered codes: right on average, the same on every side, and still where a weight did not move."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dynaquant_core.errors import StateMismatchError
from dynaquant_core.quantize import cpu_path, dither_kernels, seam, torch_path
from dynaquant_core.quantize.buckets import BitBuckets, LogBuckets
from dynaquant_core.quantize.codebook import table
from dynaquant_core.quantize.cut import NO_CUT, Cut
from dynaquant_core.quantize.dither import PLACE_OF, PLACES, Levels, assign_dithered, contexts
from dynaquant_core.quantize.lattice import offset_key, offsets
from dynaquant_core.threads import thread_count
from tests.reference import quantize_twins as twins
from tests.triton_here import why_not

EXAMPLES = settings(max_examples=80, deadline=None)
SCHEMES = [BitBuckets(6), BitBuckets(10), LogBuckets(0.01)]
CENTRES = np.array([-1.5, -0.4, -0.1, 0.12, 0.5, 0.52, 1.25], dtype=np.float32)
KEY = offset_key(5, "w")
WEIGHTS = st.one_of(
    st.floats(-3, 3, width=32),
    st.sampled_from([np.nan, np.inf, -np.inf, -0.0, *map(float, CENTRES)]),
)


def levels(zero=True, dtype=torch.float32):
    return Levels.of(CENTRES, dtype, zero=zero)


def all_sides():
    """The seam's; that of kernels for a device where Triton's interpreter can run them."""
    kernels = [] if why_not() else [importlib.import_module("dynaquant_core.quantize.device.path")]
    return [cpu_path, torch_path, *kernels]


def weights(size=40_000, dtype=torch.float32):
    return (0.7 * torch.randn(size, generator=torch.Generator().manual_seed(2))).to(dtype)


@EXAMPLES
@given(st.lists(WEIGHTS, max_size=60), st.data())
def test_the_kernel_matches_its_twin(values, data):
    array, book = np.array(values, dtype=np.float32), levels()
    draws = offsets(KEY, array.size)
    below = [int(np.count_nonzero(value >= book.values)) - 1 for value in array]
    starts = [data.draw(st.integers(-1, max(0, min(reached, 6)))) for reached in below]  # -1: protected
    sides = []
    for module in (dither_kernels, twins):
        codes = np.array([start + 2 for start in starts], dtype=np.uint8)
        module.settle(codes, array, draws, book.values, book.gaps, book.codes)
        sides.append(codes.tolist())
    assert sides[0] == sides[1]


@EXAMPLES
@given(hnp.arrays(np.uint8, st.integers(0, 90)), st.integers(0, 2**40), st.integers(1, 9))
def test_places_match_their_twin(codes, start, tile):
    sides = []
    for module in (dither_kernels, twins):
        words, out = np.zeros(tile + 1, dtype=np.uint64), np.zeros(codes.size, dtype=np.uint16)
        first, count = np.uint64(start), np.uint16(PLACES)
        module.add_places(np.uint64(KEY), first, words, words.view(np.uint16), codes, PLACE_OF, count, out)
        sides.append(out.tolist())
    assert sides[0] == sides[1]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("zero", [True, False])
def test_all_sides_give_the_same_codes(monkeypatch, scheme, dtype, zero):
    values, gradient = weights(5000, dtype), weights(5000) ** 2
    cut = Cut(protect_magnitude=float(scheme.limits[scheme.unsigned().bucket_of(np.float32(1.6))]))
    cut = Cut(cut.protect_magnitude, 0.9, 0.3, "sensitivity")
    arguments = (values, gradient, cut, levels(zero, dtype), scheme)
    expected, kept = assign_dithered(*arguments, KEY)
    assert set(np.unique(expected)) >= {1, 2, 8}
    assert (expected == 0).any() == zero
    monkeypatch.setattr(cpu_path, "BLOCK", 1 << 10)
    monkeypatch.setattr(torch_path, "CHUNK", 1000)
    for side in all_sides():
        monkeypatch.setattr(seam, "side", lambda tensor, side=side: side)
        for draws in (KEY, offsets(KEY, 5000)):
            codes, protected = assign_dithered(*arguments, draws)
            assert np.array_equal(codes, expected)
            assert np.array_equal(protected, kept)


def test_codes_do_not_depend_on_threads(monkeypatch):
    arguments = (weights(200_000), None, NO_CUT, levels(), SCHEMES[0], KEY)
    monkeypatch.setenv("DYNAQUANT_THREADS", "1")
    alone = assign_dithered(*arguments)[0]
    monkeypatch.setenv("DYNAQUANT_THREADS", "4")
    assert thread_count() == 4
    assert np.array_equal(assign_dithered(*arguments)[0], alone)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_codes_are_those_of_the_levels_around_and_right_on_average(scheme):
    """40,000 weights: the mean error's standard error is about 0.0007 a unit of the widest gap."""
    values = weights().clamp(-1.5, 1.25)
    book = levels()
    codes, _ = assign_dithered(values, None, NO_CUT, book, scheme, KEY)
    decoded = table(CENTRES)[codes].astype(np.float64)
    exact = values.double().numpy()
    above = np.searchsorted(book.values, exact)
    assert (decoded <= book.values[above.clip(0, 7)]).all()
    assert (decoded >= book.values[(above - 1).clip(0)]).all()
    error = decoded - exact
    assert abs(error.mean()) < 4 * error.std() / 200
    assert abs((error * exact).mean()) < 4 * (error * exact).std() / 200


def test_a_small_step_away_from_a_level_is_kept_on_average():
    """Nearest codes would return all of these weights to their level."""
    start = torch.full((200_000,), 0.12)
    codes, _ = assign_dithered(start + 0.004, None, NO_CUT, levels(), SCHEMES[0], KEY)
    moved = float(table(CENTRES)[codes].astype(np.float64).mean()) - 0.12
    assert abs(moved - 0.004) < 0.0004


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_weight_on_a_level_stays_there(dtype):
    decoded = seam.as_dtype(table(CENTRES), dtype)
    codes = np.tile(np.array([0, 2, 3, 4, 5, 6, 7, 8], dtype=np.uint8), 500)
    values = decoded[torch.from_numpy(codes.astype(np.int64))]
    again, _ = assign_dithered(values, None, NO_CUT, levels(dtype=dtype), SCHEMES[0], KEY)
    assert np.array_equal(again, codes)


def test_what_lies_outside_gets_the_outermost_level():
    codes, _ = assign_dithered(torch.tensor([-9.0, 9.0]), None, NO_CUT, levels(), SCHEMES[0], KEY)
    assert codes.tolist() == [2, 8]


@pytest.mark.parametrize("centres", [[], [0.0], [0.3]])
def test_one_level_or_none(centres):
    book = Levels.of(np.array(centres, dtype=np.float32), torch.float32, zero=False)
    codes, _ = assign_dithered(weights(100), None, NO_CUT, book, SCHEMES[0], KEY)
    assert set(codes.tolist()) == ({2} if centres else {0})


def test_contexts_of_a_part_are_part_of_the_contexts():
    codes = np.arange(300, dtype=np.uint8) % 66
    whole = contexts(codes, KEY)
    assert np.array_equal(contexts(codes[37:], KEY, 37), whole[37:])
    assert np.array_equal(whole // PLACES, codes)
    assert whole.max() < 1024


def test_offsets_must_be_as_many_as_weights():
    with pytest.raises(StateMismatchError, match="3 offsets do not fit a tensor of 4"):
        assign_dithered(torch.zeros(4), None, NO_CUT, levels(), SCHEMES[0], offsets(KEY, 3))
