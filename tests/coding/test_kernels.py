"""Every kernel equals its plain twin, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynaquant_core.coding import (
    counts,
    counts_kernels,
    prefix,
    prefix_kernels,
    rans_kernels,
    rans_model,
    rle,
    rle_kernels,
)
from dynaquant_core.coding import rans_decode_kernels as decoding
from dynaquant_core.coding import rans_model_kernels as mk
from dynaquant_core.coding import tables_kernels as tk
from tests.reference import coding_twins as twins

SEEDS = st.integers(0, 2**32 - 1)


def stream(seed, n=None, levels=None, rows=None, dtype=np.uint8):
    """Values that stay near their context, like codes of consecutive checkpoints."""
    rng = np.random.default_rng(seed)
    n = n or int(rng.integers(1, 400))
    levels, rows = levels or int(rng.integers(1, 20)), rows or int(rng.integers(1, 20))
    context = np.minimum(rng.integers(0, rows, n), rng.integers(0, rows, n))
    moved = rng.random(n) < rng.choice([0.02, 0.3, 1.0])
    values = np.clip(context + moved * rng.integers(-2, 3, n), 0, levels - 1)
    return values.astype(dtype), context.astype(dtype)


@given(SEEDS, st.sampled_from([np.uint8, np.uint16]))
@settings(max_examples=40, deadline=None)
def test_counts(seed, dtype):
    values, context = stream(seed, dtype=dtype)
    joint = counts.joint_counts(values, context)
    assert np.array_equal(joint, twins.joint_counts(values, context))
    assert np.array_equal(counts.symbol_counts(values), np.bincount(values))


@given(SEEDS, st.integers(2, 9))
@settings(max_examples=40, deadline=None)
def test_tokens(seed, cap):
    values, _ = stream(seed, levels=3)
    out = np.empty(values.size, np.int16)
    found = out[: rle.tokenize(values, cap, out)]
    assert np.array_equal(found, twins.tokens(values, cap))
    assert np.array_equal(twins.runs(found), values)


@given(st.lists(st.sampled_from([0, 1, 3, 50, 900, 10**6]), min_size=1, max_size=6), st.integers(2, 40))
@settings(max_examples=60, deadline=None)
def test_expected_tokens(found, cap):
    expected = np.zeros(len(found) + cap)
    if any(found):
        rle_kernels.expect(np.array(found), cap, expected)
    assert np.array_equal(expected, twins.expected_tokens(found, cap))


@given(SEEDS, st.integers(1, 90))
@settings(max_examples=60, deadline=None)
def test_code_lengths_are_optimal_and_complete(seed, symbols):
    rng = np.random.default_rng(seed)
    found = (rng.pareto(rng.choice([0.3, 1.0, 5.0]), symbols) * 10).clip(0, 1e9).astype(np.int64)
    lengths = prefix.code_lengths(found)
    assert np.array_equal(lengths > 0, found > 0)
    used = np.count_nonzero(found)
    if used > 1:
        assert (2.0 ** -lengths[lengths > 0].astype(float)).sum() == 1.0
    if used > 1 and lengths.max() < 12:
        assert int(found @ lengths) == twins.huffman_cost(found)


def test_code_lengths_stay_within_their_limit_and_near_the_optimum():
    fibonacci = [1, 1]
    while len(fibonacci) < 40:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    found = np.array(fibonacci)
    lengths = prefix.code_lengths(found)
    assert lengths.max() == 12
    assert found @ lengths < 1.01 * twins.huffman_cost(found)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_pack_and_unpack(seed):
    values, _ = stream(seed, levels=30, rows=30)
    values = values[: values.size // 4 * 4]
    if values.size == 0:
        return
    lengths = prefix.code_lengths(counts.symbol_counts(values))
    out, ends = np.zeros(4 * values.size + 64, np.uint8), [0]
    for part in np.split(values, 4):
        ends.append(prefix_kernels.pack(part, prefix.code_entries(lengths), out, ends[-1]))
        expected = twins.bits_to_bytes(twins.packed_bits(part, lengths))
        assert out[ends[-2] : ends[-1]].tobytes() == expected
        assert np.array_equal(twins.unpacked(expected, lengths, part.size), part)
    decoded, bits = np.empty_like(values), 8 * np.array(ends[:4])
    table, longest = prefix.decoding_table(lengths)
    windows = prefix.as_windows(memoryview(out[: ends[4]].tobytes()))
    prefix_kernels.unpack(decoded, table, longest, windows, bits, 8 * ends[4])
    assert np.array_equal(decoded, values)
    assert all(0 <= 8 * end - bit < 8 for bit, end in zip(bits.tolist(), ends[1:], strict=True))


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_unpack_runs(seed):
    values, _ = stream(seed, levels=3)
    levels = int(values.max()) + 1
    found = rle.tokens(values)
    lengths = prefix.code_lengths(rle.histogram(found, levels))
    data = twins.bits_to_bytes(twins.packed_bits(found + (levels - 1), lengths))
    out = np.empty_like(values)
    table, longest = prefix.decoding_table(lengths)
    windows = prefix.as_windows(memoryview(data))
    end = prefix_kernels.unpack_runs(out, table, longest, levels, windows, 0, 8 * len(data))
    assert 0 <= 8 * len(data) - end < 8
    assert np.array_equal(out, values)


@given(SEEDS, st.booleans(), st.sampled_from([np.uint8, np.uint16]))
@settings(max_examples=60, deadline=None)
def test_rans(seed, shared, dtype):
    values, context = stream(seed, dtype=dtype)
    joint = counts.joint_counts(values, context)
    starts = rans_model.fit(joint).starts
    bulk = values.size // 4 * 4 if shared else 0
    packed, inverse = np.empty(joint.size, np.uint32), np.empty(joint.size, np.uint64)
    rans_kernels.fill_widths(starts.ravel(), *joint.shape, packed, inverse)
    lanes, words = np.full(4, 1 << 16, np.uint64), np.zeros(values.size + 8, np.uint16)
    top = rans_kernels.encode(values, context, joint.shape[1], packed, inverse, bulk, lanes, words)
    states, expected = twins.rans_encode(values, context, starts, bulk)
    assert lanes.tolist() == states
    assert words[top:].tolist() == expected
    assert twins.rans_decode(states, expected, context, starts, bulk) == values.tolist()

    cells = joint.shape[0] << (15 - decoding.CELL_BITS)
    table = np.empty(cells + joint.size, np.uint64)
    decoding.fill_table(starts.ravel(), *joint.shape, decoding.CELL_BITS, table)
    padded, limit = np.array([*expected, 0, 0, 0, 0], np.uint16), len(expected)
    for decode in (decoding.decode_often, decoding.decode_seldom):
        out, ends = np.empty_like(values), lanes.copy()
        end = decode(out, context, joint.shape[1], table, cells + 1, bulk, ends, padded, 0, limit)
        assert end == limit
        assert np.array_equal(out, values)
        assert ends.tolist() == [1 << 16] * 4


@given(SEEDS, st.booleans(), st.sampled_from([np.uint8, np.uint16]))
@settings(max_examples=60, deadline=None)
def test_rans_of_one_context(seed, shared, dtype):
    values, _ = stream(seed, dtype=dtype, rows=60, levels=60)
    starts = rans_model.fit(counts.symbol_counts(values)[None]).starts
    bulk, levels = values.size // 4 * 4 if shared else 0, starts.shape[1] - 1
    states, words = twins.rans_encode(values, np.zeros_like(values), starts, bulk)
    cells = 1 << (15 - decoding.ALONE_BITS)
    table = np.empty(cells + levels, np.uint64)
    decoding.fill_table(starts.ravel(), 1, levels, decoding.ALONE_BITS, table)
    out, lanes = np.empty_like(values), np.array(states, np.uint64)
    padded = np.array([*words, 0, 0, 0, 0], np.uint16)
    assert decoding.decode_alone(out, table, cells + 1, bulk, lanes, padded, 0, len(words)) == len(words)
    assert np.array_equal(out, values)
    assert lanes.tolist() == [1 << 16] * 4


@given(SEEDS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_models(seed, crowded):
    """Roots and intervals are the twin's; what symbols take is what their intervals say."""
    values, context = stream(seed)
    joint = counts.joint_counts(values, context) * np.random.default_rng(seed).integers(1, 1 << 20)
    totals = joint.sum(axis=1)
    sampled = np.where(totals > 0, np.maximum(totals // 8, 1), 0)
    roots, modes = np.empty(joint.shape, np.int32), joint.argmax(axis=1)
    mk.fill_roots(joint, totals, sampled, roots)
    assert np.array_equal(roots, twins.roots(joint, totals, sampled))
    if crowded:  # a hostile table: more weight beside the likeliest symbol than there is room for
        roots[:] = (1 << 23) - 1
    starts = np.empty((totals.size, joint.shape[1] + 1), np.uint16)
    mk.fill_starts(sampled, roots, modes, starts)
    assert np.array_equal(starts, twins.starts(sampled, roots, modes))
    widths = np.diff(starts.astype(int), axis=1)
    used = joint > 0
    assert (widths[used] > 0).all()
    assert mk.spent(joint, starts) == pytest.approx(float(joint[used] @ (15 - np.log2(widths[used]))))
    whole = np.broadcast_to(totals[:, None], joint.shape)[used]
    assert mk.entropy(joint) == pytest.approx(float(joint[used] @ np.log2(whole / joint[used])))


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_rows_are_added_up(seed):
    values, context = stream(seed)
    joint = counts.joint_counts(values, context)
    rows = np.random.default_rng(seed).integers(0, 5, joint.shape[0]).astype(np.uint16)
    merged, expected = np.zeros((5, joint.shape[1]), np.int64), np.zeros((5, joint.shape[1]), np.int64)
    counts_kernels.add_rows(joint, rows, merged)
    np.add.at(expected, rows, joint)
    assert np.array_equal(merged, expected)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 7, 1023, 16383, 16385, 21845, 32765, 32767, 32768])
def test_division_by_multiplication_is_exact(width):
    """The largest state, and states around multiples of the width, where rounding would show."""
    starts = np.array([0, width, 1 << 15], np.uint16)
    packed, inverse = np.empty(2, np.uint32), np.empty(2, np.uint64)
    rans_kernels.fill_widths(starts, 1, 2, packed, inverse)
    down, factor = int(packed[0]) >> 31, int(inverse[0])
    top = (width << 17) - 1
    states = {top, top - 1, *(m * width + d for m in (2, 3, 999, 65535, (1 << 17) - 1) for d in (-1, 0, 1))}
    for state in states:
        assert (state + down) * factor < 1 << 64
        assert (state + down) * factor >> 46 == state // width


@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_tables(seed):
    values, context = stream(seed)
    joint = counts.joint_counts(values, context)
    model = rans_model.fit(joint)
    totals, rooted = joint.sum(axis=1), np.sqrt(256.0 * joint.sum(axis=1)).astype(int)
    roots = np.maximum(np.rint(np.sqrt(joint / 2)), joint > 0).astype(int)
    writer = twins.Decisions(rans_model._PRIOR)
    writer.number(2 * (model.lanes // 4), 2)
    writer.number(model.levels - 1, 10)
    writer.rows(totals, rooted, roots, joint.argmax(axis=1), model.levels)
    assert model.slots.tolist() == writer.slots

    stack = twins.Stack()
    for slot in reversed(writer.slots):
        stack.push(slot >> 16, slot & 0xFFFF)
    lane, words = np.array([1 << 16, 0, 0], np.uint64), np.zeros(model.slots.size, np.uint16)
    top = tk.push_slots(model.slots, model.slots.size, lane, words, words.size)
    assert (int(lane[0]), words[top:].tolist()) == (stack.state, stack.words)

    lane[1] = 0
    again = rans_model.read(lambda sampled: totals, lane, words[top:], 256)
    assert np.array_equal(again.starts, model.starts)
    assert (again.levels, again.lanes) == (model.levels, model.lanes)
    reader = twins.Decisions(rans_model._PRIOR, stack)
    assert (reader.number(0, 2), reader.number(0, 10)) == (2 * (model.lanes // 4), model.levels - 1)
    blank = np.zeros(joint.shape, int)
    known, modes = reader.rows(totals, rooted, blank, np.zeros(totals.size, int), model.levels)
    others = np.arange(model.levels)[None] != joint.argmax(axis=1)[:, None]
    seen = others & (totals > 0)[:, None]
    assert np.array_equal(known[seen], roots[seen])
    assert np.array_equal(modes[totals > 0], joint.argmax(axis=1)[totals > 0])


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_length_tables(seed):
    rng = np.random.default_rng(seed)
    lengths = (rng.integers(1, 16, 50) * (rng.random(50) < 0.5)).astype(np.uint8)
    prior = np.full(2 * tk.LENGTH_CONTEXTS, 16, np.int32)
    writer = twins.Decisions(prior)
    writer.lengths(lengths)
    slots, lane = np.empty(250, np.uint32), np.zeros(3, np.uint64)
    tk.code_lengths(lengths, prior.copy(), slots, lane, np.zeros(1, np.uint16), 0)
    assert slots[: int(lane[1])].tolist() == writer.slots
