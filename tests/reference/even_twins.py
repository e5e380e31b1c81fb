"""Plain twins of the kernels of evenly spaced levels and of the nearest centre."""

from __future__ import annotations

import numpy as np


def places(values, low, inverse):
    return (values.astype(np.float64) - low) * inverse


def assign_even(values, low, inverse, last, codes):
    codes[:] = np.floor(places(values, low, inverse).clip(0, last) + 0.5)


def look_up(codes, table, out):
    out[:] = table[codes]


def tally_even(values, low, inverse, count, first, second):
    u = places(values, low, inverse)
    cell = (u * count.size).clip(0, count.size - 1).astype(np.int64)
    for sums, terms in ((count, np.ones_like(u)), (first, u), (second, u * u)):
        np.add.at(sums, cell, terms)


def cells_of(values, low, inverse, last, cells):
    cells[:] = np.trunc(places(values, low, inverse).clip(0, last))


def count_below(values, low, inverse, starts, bounds, codes):
    codes[:] = (bounds[None, :] < values[:, None]).sum(axis=1)
