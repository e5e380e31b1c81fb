"""Plain twins of the lattice's kernels, and the lattice in the words of its definition."""

from __future__ import annotations

import numpy as np

MASK = 2**64 - 1


def word(key, block):
    """SplitMix64's finaliser in whole numbers of any size."""
    z = (int(key) + (int(block) + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def numbers(key, start, count):
    """16-bit number of each index."""
    found = [(word(key, i // 4) >> (16 * (i % 4))) & 0xFFFF for i in range(int(start), int(start) + count)]
    return np.array(found, dtype=np.int64)


def offsets(key, start, count):
    exact = (2 * numbers(key, start, count) + 1 - 65536) / 131072
    return exact.astype(np.float32)


def nearest(key, start, values, step):
    """k of each value as float32, NaN and infinity included."""
    with np.errstate(all="ignore"):
        return np.rint(values / np.float32(step) - offsets(key, start, values.size))


# -- kernels.py ----------------------------------------------------------------------------------


def fill_offsets(key, start, words, halves, out):
    out[:] = offsets(key, start, out.size)


def quantise(key, start, words, halves, values, step, symbols):
    k = nearest(key, start, values, step)
    within = np.abs(k) <= 127
    symbols[:] = np.where(within, np.where(within, k, 0).astype(np.int64) + 128, 0)
    return int((~within).sum())


def find_escapes(key, start, values, step, positions, escapes):
    k = nearest(key, start, values, step)[positions].astype(np.float64)
    fits = np.abs(k) < 2**31
    known = int(np.argmin(fits)) if not fits.all() else k.size
    escapes[:known] = k[:known].astype(np.int64)
    return bool(fits.all())


def place(key, start, words, halves, symbols, step, low, high, out):
    k = symbols.astype(np.float32) - np.float32(128)
    out[:] = np.clip((k + offsets(key, start, symbols.size)) * np.float32(step), low, high)


def place_escapes(key, start, positions, escapes, step, low, high, out):
    last = int(positions.max()) + 1 if positions.size else 0
    shifted = escapes.astype(np.float32) + offsets(key, start, last)[positions]
    out[positions] = np.clip(shifted * np.float32(step), low, high)


def add_moments(values, pivot, sums, squares):
    for i, value in enumerate(values.astype(np.float64)):
        sums[i % sums.size] += value - pivot
        squares[i % sums.size] += (value - pivot) * (value - pivot)
