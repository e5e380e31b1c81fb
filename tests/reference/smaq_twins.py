"""Plain twins of SmaQ's kernels."""

from __future__ import annotations

import numpy as np

from tests.reference import lattice_twins

F = np.float32


def scores(values, mean, inverse):
    with np.errstate(over="ignore"):
        return (values - F(mean)) * F(inverse)


def classify(values, mean, inverse, box, mask):
    outside = np.abs(scores(values, mean, inverse)) > box
    mask[:] = np.packbits(outside, bitorder="little")
    return int(outside.sum())


def codes(values, mean, inverse, geometry, key, start):
    """(outlier?, inlier's code, outlier's code) of each value."""
    box, limit, inner_scale, inner_last, outer_scale, outer_last, sign = geometry
    z = scores(values, mean, inverse)
    halves = lattice_twins.numbers(key, start, values.size)
    draw = ((2 * halves + 1) / 2**17).astype(F)
    with np.errstate(over="ignore"):
        inside = ((z + box) * inner_scale + draw).clip(F(0), inner_last)
    outside = ((np.minimum(np.abs(z), limit) - box) * outer_scale + draw).clip(F(0), outer_last)
    far = outside.astype(np.uint8) | np.where(z < 0, sign, np.uint8(0))
    return np.abs(z) > box, inside.astype(np.uint8), far


def packed(run, width):
    """Bit by bit: bit b of code i of a group is bit w i + b of its bytes."""
    filled = np.concatenate((run, np.zeros(-run.size % 8, np.uint8)))
    bits = (filled[:, None] >> np.arange(width)) & 1
    return np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little")


def unpacked(run, width, count):
    bits = np.unpackbits(run, bitorder="little").reshape(-1, int(width))
    return (bits << np.arange(int(width))).sum(axis=1)[:count].astype(np.uint8)


def write_chunk(values, mean, inverse, geometry, widths, key, start, w, h, i, o, inner, outer):
    far, near_codes, far_codes = codes(values, mean, inverse, geometry, key, start)
    inner[:] = packed(near_codes[~far], int(widths[0]))
    outer[:] = packed(far_codes[far], int(widths[1]))


def read_chunk(mask, inner, outer, outliers, widths, inner_table, outer_table, i, o, out):
    far = np.unpackbits(mask, count=out.size, bitorder="little").astype(bool)
    out[~far] = inner_table[unpacked(inner, widths[0], out.size - int(outliers))]
    out[far] = outer_table[unpacked(outer, widths[1], int(outliers))]


def settle(values, mean, inverse, geometry, key, start, w, h, inner_table, outer_table, out):
    far, near_codes, far_codes = codes(values, mean, inverse, geometry, key, start)
    out[:] = np.where(far, outer_table[far_codes], inner_table[near_codes])
    return int(far.sum())
