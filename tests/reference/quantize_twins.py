"""Plain twins of quantize's kernels, and solvers that try everything; slow and obviously right."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np

from tests.reference.lattice_twins import numbers

# -- kernels.py ----------------------------------------------------------------------------------


def count_words(words, shift, mask, counts):
    keys = words.view(np.uint32)
    cells = (keys >> np.uint32(int(shift) + 1)).astype(np.int64) & (int(mask) >> 1)
    np.add.at(counts, 2 * cells + np.arange(keys.size) % 2, np.uint32(1))


def split_keys(bits, shift, split, keys):
    cell = (bits >> shift).astype(np.int64)
    keys[:] = 2 * cell + ((bits & np.uint32(0x7FFFFFFF)) > split[cell])


def score_cells(keys, shift, weights, counts, energy):
    for key, weight in zip(keys >> shift, weights.astype(np.float64), strict=True):
        counts[key] += 1
        energy[key] += weight * weight


def count_joint(keys, shift, rows, base, levels, joint):
    index = rows[keys >> shift].astype(np.int64) * int(levels) + base
    np.add.at(joint, index, 1)


def scored_rows(rows, scores, pruned, prune, protect):
    rows = np.where((scores <= prune) & (rows != pruned + 1), pruned, rows)
    return np.where(scores > protect, pruned + 1, rows)


def count_scored(keys, shift, rows, scores, pruned_row, prune, protect, base, levels, joint):
    row = scored_rows(rows[keys >> shift].astype(np.int64), scores, int(pruned_row), prune, protect)
    np.add.at(joint, row * int(levels) + base, 1)


def assign_levels(keys, shift, levels, bits, codes, protected):
    codes[:] = levels[keys >> shift]
    return keep_protected(codes, bits, protected)


def assign_scored(keys, shift, levels, scores, prune, protect, bits, codes, protected):
    codes[:] = scored_rows(levels[keys >> shift].astype(np.int64), scores, 0, prune, protect)
    return keep_protected(codes, bits, protected)


def keep_protected(codes, bits, protected):
    kept = bits[codes == 1]
    protected[: kept.size] = kept
    return kept.size


def fold_lanes(lanes, counts):
    counts += lanes.reshape(-1, 2).sum(axis=1, dtype=np.int64)


def fold(counts, target, out):
    np.add.at(out, target, counts)


def place(codes, table, protected, out):
    out[:] = table[codes]
    ones = np.flatnonzero(codes == 1)
    out[ones] = protected[: ones.size]
    return ones.size


# -- block_kernels.py ----------------------------------------------------------------------------


def fine_level(bits, up, count=64):
    """log2 |x| in parts of an octave, by floating arithmetic instead of tables."""
    magnitude = np.abs(bits.view(np.float32).astype(np.float64))
    return np.floor(count * np.log2(magnitude) + up).astype(np.int64)


def fall_of(draw, step):
    """In 1024ths of an octave, how far below a step a value is that falls to the next."""
    chances = (1 - 2.0 ** (-np.arange(128 << step) / 1024)) / (1 - 2.0 ** (-(2.0**step) / 8))
    return (4096 * chances <= draw + 0.5).sum()


def encode_block(bits, signed, reach, least, most, draws=None):
    """(codes, scale) of one block of finite values, to the nearest step, or as was drawn for 32 each."""
    used = (bits & np.uint32(0x7FFFFFFF)) != 0
    level = np.zeros(bits.size, dtype=np.int64)
    drawn = draws is not None and draws.size > 0
    level[used] = fine_level(bits[used], 0.5 if drawn else 0)
    magnitudes = bits[used] & np.uint32(0x7FFFFFFF)
    lowest, top, step = 0, 0, least
    if used.any():
        lowest, highest = level[used].min(), level[used].max()
        top = -(-highest // 8) if drawn else (highest + 4) // 8
        if drawn and magnitudes.max() >= 0x800000:
            steps = (2.0 ** (np.arange(-126 * 8, 1024) / 8)).astype(np.float32).view(np.uint32)
            top = int(np.searchsorted(steps, magnitudes.max())) - 126 * 8
    more = 8 if drawn else 4
    while step < most and (top * 8 - lowest + (more << step) - 1) // (8 << step) > reach - 1:
        step += 1
    down = (top * 8 - level + (4 << step) - 1) // (8 << step)
    if drawn:
        falls = np.repeat([fall_of(draw, step) for draw in draws], 32)[: bits.size]
        down = (top * 8 - level + (8 << step) - np.maximum(1, (falls + 7) >> 4)) // (8 << step)
        if step <= 3 and used.any() and magnitudes.min() >= 0x800000:
            finer = np.zeros_like(level)
            finer[used] = fine_level(bits[used], 0.5, 1024)
            down = (top * 128 - finer + (128 << step) - falls) // (128 << step)
    code = np.where(used, np.maximum(0 if signed else 1, reach - down), 0)
    if signed:
        code = reach + 1 + np.where(bits >> np.uint32(31) == 1, -code, code)
    return code.astype(np.uint8), int(top * 16 + (8 if signed else 0) + step)


def decode_block(codes, scale, reach):
    """float64 values of one block, before they are rounded to a dtype."""
    top, signed, step = scale >> 4, bool(scale & 8), scale & 7
    offset = codes.astype(np.int64) - (reach + 1 if signed else 0)
    down = reach - np.abs(offset)
    return np.sign(offset) * 2.0 ** ((top - down * 2.0**step) / 8)


# -- level_kernels.py ----------------------------------------------------------------------------


def fit_levels(values, rows, columns, times, levels, fitted, under):
    wide = values.astype(np.float64)
    product = rows[:, None] * columns
    levels[:] = 1 + (wide > 2 * product) - (wide < 0.5 * product)
    weights = (times[levels] * columns).sum(axis=1)
    fitted[:] = np.divide(wide.sum(axis=1), weights, out=np.zeros_like(weights), where=weights > 0)
    under += (fitted[:, None] * times[levels]).sum(axis=0)


# -- K-means -------------------------------------------------------------------------------------


def best_splits(layer, mass, first, second, before):
    """(after, lowest best start) of one layer of the dynamic programme, trying every start."""
    size = mass.size - 1
    after, starts = np.full(size, np.inf), np.zeros(size, dtype=np.int64)
    for i in range(layer, size):
        start = np.arange(layer, i + 1)
        moment = first[i + 1] - first[start]
        cost = before[start - 1] + (second[i + 1] - second[start])
        cost = cost - moment * moment / (mass[i + 1] - mass[start])
        starts[i] = start[np.argmin(cost)]
        after[i] = cost.min()
    return after, starts


def best_partition(values, weights, k, power=2):
    """(least loss, its centres) over every way to cut sorted points into k runs (or fewer, if few)."""
    size = len(values)
    best = (np.inf, np.zeros(0))
    for inner in combinations(range(1, size), min(k, size) - 1):
        bounds = (0, *inner, size)
        runs = [slice(low, high) for low, high in pairwise(bounds)]
        centres = np.array([centre(values[run], weights[run], power) for run in runs])
        loss = sum(
            float(np.sum(weights[run] * np.abs(values[run] - middle) ** power))
            for run, middle in zip(runs, centres, strict=True)
        )
        best = min(best, (loss, centres), key=lambda pair: pair[0])
    return best


def centre(values, weights, power):
    """Weighted mean for squares, weighted median for absolute distances."""
    if power == 2:
        return float(np.average(values, weights=weights))
    below = np.cumsum(weights)
    return float(values[np.searchsorted(below, below[-1] / 2)])


# -- dither_kernels.py ---------------------------------------------------------------------------


def settle(codes, weights, offsets, values, gaps, names):
    with np.errstate(all="ignore"):
        start = codes.astype(np.int64) - 2
        reached = np.array([np.count_nonzero(weight >= values) - 1 for weight in weights], dtype=np.int64)
        low = np.minimum(np.maximum(reached, start), values.size - 2).clip(0)
        upper = weights - values[low] > (offsets + np.float32(0.5)) * gaps[low]
    codes[:] = np.where(codes == 1, 1, names[low + upper])


def add_places(key, start, words, halves, codes, places, count, out):
    out[:] = codes.astype(np.int64) * int(count) + places[numbers(key, start, codes.size)]


# -- exponent_kernels.py -------------------------------------------------------------------------


def exponent_bucket(bits):
    return np.where(bits & np.uint32(0x7FFFFFFF), bits >> np.uint32(23), 512).astype(np.int64)


def bucket_ranges(bits, counts, low, high):
    bucket, magnitude = exponent_bucket(bits), bits & np.uint32(0x7FFFFFFF)
    np.add.at(counts, bucket, 1)
    np.minimum.at(low, bucket, magnitude)
    np.maximum.at(high, bucket, magnitude)


def bucket_codes(bits, table, codes):
    codes[:] = table[exponent_bucket(bits)]
