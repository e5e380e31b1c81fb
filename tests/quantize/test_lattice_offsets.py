"""Offsets: the numbers of the format, uniform, and unrelated between neighbours, tensors and epochs."""

from __future__ import annotations

import numpy as np
import pytest

from dynaquant_core.errors import ConfigError
from dynaquant_core.quantize.lattice import offset_key, offsets
from tests.reference import lattice_twins as twins

COUNT = 1 << 20
#: A standard normal leaves this once in 10^5.
FAR = 4.4


def numbers(key, count=COUNT):
    """The 16-bit integers that offsets are made of."""
    return np.rint((offsets(key, count).astype(np.float64) * 131072 + 65535) / 2).astype(np.int64)


def deviation(left, right):
    """Correlation of two runs of offsets, in standard deviations of independent ones."""
    return abs(np.corrcoef(left, right)[0, 1]) * np.sqrt(left.size)


def test_the_first_offsets_of_a_key_are_those_of_the_format():
    key = offset_key(7, "blocks.0.attn.qkv.weight")
    assert key == 0xD720897246D4A230
    assert numbers(key, 10).tolist() == [19820, 54932, 54845, 54318, 16305, 4520, 17475, 392, 49064, 33685]
    assert offset_key(2**32 - 1, "") == 0xA4F199794CCFA477
    np.testing.assert_array_equal(offsets(key, 10), twins.offsets(key, 0, 10))
    np.testing.assert_array_equal(offsets(key, 7, start=10**15 + 1), twins.offsets(key, 10**15 + 1, 7))


def test_offsets_are_exact_symmetric_and_never_end_points(monkeypatch):
    found = offsets(1, 1 << 22)
    assert found.dtype == np.float32
    wide = found.astype(np.float64) * 131072
    assert (wide == np.rint(wide)).all()
    assert (wide % 2 == 1).all()
    assert (found.min(), found.max()) == (-0.5 + 2.0**-17, 0.5 - 2.0**-17)


def test_any_range_gives_the_same_offsets(monkeypatch):
    whole = offsets(99, 300_000)
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("DYNAQUANT_THREADS", threads)
        np.testing.assert_array_equal(offsets(99, 300_000), whole)
        for start, stop in ((0, 1), (1, 4), (3, 3), (5, 4101), (1023, 2050), (70_001, 299_999)):
            np.testing.assert_array_equal(offsets(99, stop - start, start), whole[start:stop])


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1, offset_key(0, "weight")])
def test_offsets_are_uniform(key):
    counts = np.bincount(numbers(key) >> 8, minlength=256)
    low = np.bincount(numbers(key) & 255, minlength=256)
    for found in (counts, low):
        chi = ((found - COUNT / 256) ** 2).sum() / (COUNT / 256)
        assert abs(chi - 255) < FAR * np.sqrt(2 * 255)
    assert abs(offsets(key, COUNT).mean(dtype=np.float64)) < FAR / np.sqrt(12 * COUNT)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 5, 64, 256, 768, 1024])
def test_neighbours_are_unrelated(lag):
    found = offsets(offset_key(0, "weight"), COUNT + lag)
    assert deviation(found[lag:], found[:-lag]) < FAR
    assert deviation(np.abs(found[lag:]), np.abs(found[:-lag])) < FAR


def test_tensors_and_epochs_are_unrelated():
    names = ["blocks.0.weight", "blocks.1.weight", "blocks.0.bias"]
    keys = [offset_key(epoch, name) for name in names for epoch in (0, 1, 2, 2**32 - 1)]
    assert len(set(keys)) == len(keys)
    runs = [offsets(key, COUNT // 4) for key in keys]
    for i, left in enumerate(runs):
        for right in runs[:i]:
            assert deviation(left, right) < FAR


def test_keys_one_apart_are_unrelated():
    runs = [offsets(key, COUNT // 4) for key in (1000, 1001, 1002, 1000 ^ (1 << 63))]
    for i, left in enumerate(runs):
        for right in runs[:i]:
            assert deviation(left, right) < FAR


def test_what_is_out_of_range_is_refused():
    for epoch in (-1, 2**32):
        with pytest.raises(ConfigError, match="epoch must be 0 to 4294967295"):
            offset_key(epoch, "weight")
    for key in (-1, 2**64):
        with pytest.raises(ConfigError, match="key must be"):
            offsets(key, 3)
    for count, start in ((-1, 0), (1, -1), (2, 2**63 - 1)):
        with pytest.raises(ConfigError, match="do not exist"):
            offsets(1, count, start)
