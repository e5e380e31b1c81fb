"""How small streams get, and that their size is known before they are written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.coding import codec_by_name, cost
from dynaquant_core.coding.choose import encode_smallest
from dynaquant_core.coding.counts import joint_counts
from dynaquant_core.coding.registry import CODECS


def memoryless(n, levels, moved, seed=0, stickiness=0.7):
    """Codes that step up or down from the codes before them, independently of each other."""
    rng = np.random.default_rng(seed)
    before = np.clip(rng.normal(levels / 2, levels / 5, n), 0, levels - 1).astype(np.uint8)
    steps = rng.choice([-1, 1], n) * rng.geometric(stickiness, n) * (rng.random(n) < moved)
    return np.clip(before.astype(int) + steps, 0, levels - 1).astype(np.uint8), before


@pytest.mark.parametrize("levels", [8, 18, 34])
def test_conditional_rans_is_near_the_entropy_with_tables(levels):
    """Summed over streams as a small network has them, as the target is stated."""
    size = floor = 0.0
    for n in (20_000, 60_000, 60_000, 260_000):
        for moved in (0.01, 0.05, 0.3):
            now, before = memoryless(n, levels, moved)
            size += len(codec_by_name("rans_context").encode(now, before))
            floor += cost.entropy_bits(joint_counts(now, before)) / 8
    assert 1.0 < size / floor < 1.02


def test_short_streams_do_not_bloat():
    now, before = memoryless(2_000, 18, 0.3)
    floor = cost.entropy_bits(joint_counts(now, before)) / 8
    assert len(codec_by_name("rans_context").encode(now, before)) < floor + 70
    assert len(codec_by_name("rans").encode(now)) < cost.entropy_bits(joint_counts(now)) / 8 + 25


def test_an_unchanged_stream_costs_its_table_only():
    _, before = memoryless(100_000, 18, 0.0)
    assert len(codec_by_name("rans_context").encode(before, before)) <= 20


def test_rare_changes_are_not_drowned_by_rounded_probabilities():
    now, before = memoryless(600_000, 18, 0.001)
    floor = cost.entropy_bits(joint_counts(now, before)) / 8
    assert len(codec_by_name("rans_context").encode(now, before)) < 1.06 * floor


ESTIMATES = {
    "rans": lambda joint: cost.order0_bytes(joint.sum(axis=0)),
    "rans_context": cost.context_bytes,
    "huffman": lambda joint: cost.huffman_bytes(joint.sum(axis=0)),
    "rle_huffman": cost.rle_huffman_bytes,
    "paper": cost.paper_bytes,
}


@pytest.mark.parametrize("name", ESTIMATES)
@pytest.mark.parametrize("moved", [0.005, 0.1, 0.6])
@pytest.mark.parametrize("levels", [6, 18, 34])
def test_sizes_are_known_from_counts(name, moved, levels):
    for n in (30_000, 300_000):
        now, before = memoryless(n, levels, moved, seed=n + levels)
        size = len(codec_by_name(name).encode(now, before))
        assert abs(ESTIMATES[name](joint_counts(now, before)) - size) <= 0.02 * size + 8


def test_the_paper_coder_counts_a_key_checkpoint_and_a_grown_codebook():
    now, _ = memoryless(50_000, 18, 0.5)
    small = now // 3
    paper = codec_by_name("paper")
    for context in (None, small):
        size = len(paper.encode(now, context))
        assert abs(cost.paper_bytes(joint_counts(now, context)) - size) <= 0.02 * size


def test_estimates_of_nothing():
    for estimate in ESTIMATES.values():
        assert estimate(np.zeros((3, 4), np.int64)) == 0


def test_entropy_bits():
    assert cost.entropy_bits(np.array([[1, 1], [0, 0], [5, 0]])) == 2.0
    assert cost.entropy_bits(np.array([4, 4])) == 8.0


# -- choosing ------------------------------------------------------------------------------------


def decoded(codec, payload, values, context):
    out = np.empty_like(values)
    codec_by_name(CODECS[codec][0]).decode(payload, out, context)
    return out


def test_the_smallest_is_chosen_for_symbols():
    now, before = memoryless(50_000, 18, 0.1)
    for values, context, expected in (
        (now, before, "rans_context"),
        (now, now.copy(), "same"),
        (now * 0, before, "constant"),
        (now, None, "rans"),
        (np.random.default_rng(0).permutation(256).astype(np.uint8), None, "raw"),
        (np.tile(np.random.default_rng(0).integers(0, 200, 500).astype(np.uint8), 50), None, "zstd"),
        (now[:0], before[:0], "same"),
        (now[:0], None, "raw"),
    ):
        codec, payload = encode_smallest(values, context)
        assert CODECS[codec][0] == expected
        assert decoded(codec, payload, values, context).tobytes() == values.tobytes()


def test_structure_beyond_counts_is_found_in_a_sample():
    """Whole rows untouched, others all new: counts alone would pay for every untouched symbol."""
    rng = np.random.default_rng(0)
    before = rng.integers(0, 200, 400_000).astype(np.uint8)
    now = before.copy()
    now[200_000:203_000] = rng.integers(0, 200, 3000)
    codec, payload = encode_smallest(now, before)
    assert len(payload) <= len(codec_by_name("rans_context").encode(now, before))
    assert decoded(codec, payload, now, before).tobytes() == now.tobytes()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_the_choice_is_near_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    now, before = memoryless(int(rng.integers(1, 9000)), int(rng.integers(1, 40)), rng.random() ** 3, seed)
    codec, payload = encode_smallest(now, before)
    assert decoded(codec, payload, now, before).tobytes() == now.tobytes()
    names = ("raw", "huffman", "rle_huffman", "rans", "rans_context", "paper", "zstd", "planes_xor")
    sizes = [len(codec_by_name(name).encode(now, before)) for name in names]
    assert len(payload) <= 1.05 * min(sizes) + 12


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "uint16"])
def test_the_smallest_is_chosen_for_values(dtype):
    rng = np.random.default_rng(0)
    before = (
        (rng.normal(0, 100, 60_000)).astype(dtype)
        if dtype != "uint16"
        else rng.integers(0, 65536, 60_000, dtype)
    )
    now = before.copy()
    now[::20] = now[::20][::-1]
    codec, payload = encode_smallest(now, before)
    assert CODECS[codec][0] == "planes_xor"
    assert decoded(codec, payload, now, before).tobytes() == now.tobytes()
    codec, payload = encode_smallest(now)
    assert len(payload) <= now.nbytes
    assert decoded(codec, payload, now, None).tobytes() == now.tobytes()


def test_equal_means_equal_bits():
    zeros = np.zeros(100, np.float32)
    assert encode_smallest(zeros, -zeros)[0] == 9
    nan = np.full(100, np.nan, np.float32)
    nan[3] = 0
    assert encode_smallest(nan, nan.copy())[0] == 8


def test_candidates_can_be_named():
    now, before = memoryless(5_000, 18, 0.1)
    assert encode_smallest(now, before, ("paper",))[0] == 10
    assert encode_smallest(now, before, ("rle_huffman", "huffman"))[0] in {2, 3}
    with pytest.raises(ValueError, match="No candidate"):
        encode_smallest(now, None, ("rans_context", "planes_xor"))
    with pytest.raises(ValueError, match="No candidate"):
        encode_smallest(now.astype(np.float32), None, ("rans",))
