"""Attacks that a random mutation would take long to find."""

import numpy as np
import pytest
import zstandard

from dynaquant_core.coding import codec_by_name
from dynaquant_core.coding.counts import joint_counts
from dynaquant_core.coding.prefix import code_lengths, decoding_table
from dynaquant_core.coding.tables import TableWriter
from dynaquant_core.coding.wire import Reader, number
from dynaquant_core.errors import CorruptFileError, LimitError, TruncatedError


def test_a_zstd_frame_is_refused_by_its_header():
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    for name, payload in (("zstd", bomb), ("planes", number(len(bomb)) + bomb)):
        with pytest.raises(LimitError):
            codec_by_name(name).decode(payload, np.empty(100, np.uint8))


def test_a_zstd_frame_must_state_its_size_and_be_alone():
    anonymous = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
    out = np.empty(100, np.uint8)
    with pytest.raises(CorruptFileError):
        codec_by_name("zstd").decode(anonymous, out)
    with pytest.raises(CorruptFileError):
        codec_by_name("zstd").decode(codec_by_name("zstd").encode(bytes_of(100)) * 2, out)


def bytes_of(n):
    return np.zeros(n, np.uint8)


def test_numbers_are_bounded():
    assert Reader(number(2**60), "test").number(limit=2**61) == 2**60
    for payload in (number(2**70), b"\xff" * 12, number(11)):
        with pytest.raises(LimitError, match="at most 10"):
            Reader(payload, "test").number(limit=10)
    with pytest.raises(TruncatedError):
        Reader(b"\x80", "test").number(limit=10)


@pytest.mark.parametrize("lengths", [[], [0, 0], [1], [1, 1, 1], [1, 2], [2, 2, 2], [15, 1]])
def test_only_complete_prefix_codes_are_read(lengths):
    if lengths == [1]:
        table, longest = decoding_table(np.uint8(lengths))
        assert (table.tolist(), longest) == ([1, 1], 1)
        return
    with pytest.raises(CorruptFileError, match="not a complete prefix code"):
        decoding_table(np.uint8(lengths))


@pytest.mark.parametrize(("name", "bits"), [("huffman", (10,)), ("rle_huffman", (10, 11))])
def test_levels_that_do_not_fit_the_output_are_refused(name, bits):
    """A valid table of more levels than a byte holds, read into bytes."""
    writer = TableWriter()
    for width in bits:
        writer.number(299, bits=width)
    if name == "rle_huffman":
        writer.number(0, bits=1)
    writer.lengths(code_lengths(np.ones(300, np.int64)))
    with pytest.raises(CorruptFileError, match="not fit uint8"):
        codec_by_name(name).decode(writer.finish() + bytes(5000), np.empty(1000, np.uint8))


@pytest.mark.parametrize("name", ["rans", "rans_context", "huffman", "rle_huffman", "paper"])
def test_levels_of_a_wide_stream_are_refused_in_a_narrow_output(name):
    values = np.arange(600, dtype=np.uint16)
    context = np.zeros(600, np.uint8)
    payload = codec_by_name(name).encode(values, context)
    with pytest.raises(CorruptFileError):
        codec_by_name(name).decode(payload, np.empty(600, np.uint8), context)


def test_a_context_that_a_sampled_stream_did_not_have_is_survived():
    """Long contexts are counted in a sample, so a wrong base can hold symbols without a table."""
    rng = np.random.default_rng(0)
    before = rng.integers(0, 8, 300_000).astype(np.uint8)
    codec, now = codec_by_name("rans_context"), (before + (rng.random(300_000) < 0.1)).astype(np.uint8)
    payload, out = codec.encode(now, before), np.empty_like(now)
    other = before.copy()
    other[1::8] = 200
    with pytest.raises(CorruptFileError):
        codec.decode(payload, out, other)
    assert int(out.max()) < 256


def test_a_context_too_rare_for_the_sample_still_has_its_table():
    before = np.zeros(300_000, np.uint8)
    before[[1, 77_777]] = 9
    now = before.copy()
    now[[1, 5, 299_999]] = 3
    codec, out = codec_by_name("rans_context"), np.empty_like(now)
    codec.decode(codec.encode(now, before), out, before)
    assert np.array_equal(out, now)


def test_outputs_that_cannot_be_filled_are_refused():
    payload = codec_by_name("rans").encode(np.zeros(10, np.uint8))
    for out in (np.empty((5, 2), np.uint8), np.empty(20, np.uint8)[::2], np.empty(10, np.float32)):
        with pytest.raises(ValueError, match="decode into"):
            codec_by_name("rans").decode(payload, out)
        with pytest.raises(ValueError, match="flat"):
            codec_by_name("raw").decode(bytes(out.nbytes), out.reshape(5, 2)[:, :1])


def test_counts_refuse_what_is_not_symbols():
    with pytest.raises(ValueError, match="below 1024"):
        joint_counts(np.array([1024], np.uint16))
    with pytest.raises(ValueError, match="Context has 2"):
        joint_counts(np.zeros(3, np.uint8), np.zeros(2, np.uint8))
