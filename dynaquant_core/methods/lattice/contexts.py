"""What the base says of a weight before its residual is read: 169 fine contexts, and how they are merged.

Context 0: no base.  1 to 28: the lattice stayed; by the base's |k| (up to 3), whether it points the way the
weight last moved, and how long ago that was.  29 to 168: another lattice; by the place of the base's value in
its new cell (20, mirrored: finer towards the border) and the way and age of the last move.

A large tensor can afford all of them; a small one has too few weights to pay for their tables, so each run of
tensors is coded under the scheme that makes it smallest.  Tensors that share a run are told apart by class.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.methods.lattice.cells import Alphabet

__all__ = [
    "CLASSES",
    "COUNT",
    "FEW_MOVED",
    "FIRST_NEW",
    "SCHEMES",
    "SHARED",
    "SHARED_SCHEMES",
    "aim_table",
    "context_table",
    "is_scheme",
]

Table = NDArray[np.uint16]

FIRST_KEPT, FIRST_NEW, COUNT = 1, 29, 169
#: Classes of the tensors that share a run.
CLASSES = 8
#: Added to the number of a scheme where there are residuals of moved weights only.
FEW_MOVED = 16


def _cells(alphabet: Alphabet) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(k, age, way up) of every possible cell, int64[256] each; the way of k where there was no move."""
    cells = np.arange(256)
    k = (cells >> alphabet.shift) - alphabet.zero
    history = cells & 7 if alphabet.narrow else np.zeros(256, np.int64)
    age = history & 3
    return k, age, np.where(age > 0, history < 4, k >= 0)


def context_table(alphabet: Alphabet) -> NDArray[np.uint8]:
    """Context of a weight on a lattice that stayed, by its cell in the base: uint8[256]."""
    k, age, up = _cells(alphabet)
    against = (k > 0) != up
    level = np.where(k == 0, 0, 2 * np.minimum(np.abs(k), 3) - 1 + against)
    return (FIRST_KEPT + 4 * level + age).astype(np.uint8)


def aim_table(alphabet: Alphabet) -> NDArray[np.int16]:
    """Aim of a weight on a lattice that stayed, by its cell in the base: int16[256]."""
    k, _, up = _cells(alphabet)
    return (2 * k + up).astype(np.int16)


def _merged(kept: NDArray[np.int64], new: NDArray[np.int64]) -> Table:
    """A scheme from the groups of the kept contexts, int[28], and of the new ones, int[140]."""
    groups = np.concatenate(([0], 1 + kept, 2 + kept.max() + new))
    return groups.astype(np.uint16)


def _schemes() -> tuple[Table, ...]:
    kept, new = np.arange(28), np.arange(140)
    level, age = kept // 4, kept % 4
    side = np.where(level == 0, 0, 1 + (level - 1) % 2)
    place, relation = new // 7, new % 7
    way = np.where(relation == 0, 0, np.where(relation < 4, 1, 2))
    return (
        _merged(kept, new),
        _merged(side * 4 + age, place * 3 + way),
        _merged(level, place),
        _merged(age, place // 2),
        _merged(side, place // 5),
        _merged(0 * kept, 0 * new),
    )


#: Fine context -> context, for a run of one tensor, finest first.
SCHEMES = _schemes()
#: Fine context -> the finest that tensors in a shared run get.
SHARED = SCHEMES[1]


def _shared_schemes() -> tuple[Table, ...]:
    """Merges of class * n + context, n the contexts of `SHARED`: apart by class, and not."""
    n = int(SHARED.max()) + 1
    first = np.unique(SHARED, return_index=True)[1]
    found = []
    for scheme in SCHEMES[1:]:
        coarse = scheme[first]
        by_class = [number * (int(coarse.max()) + 1) + coarse for number in range(CLASSES)]
        found += [np.concatenate(by_class), np.tile(coarse, CLASSES)]
    assert all(table.size == CLASSES * n for table in found)
    return tuple(table.astype(np.uint16) for table in found)


SHARED_SCHEMES = _shared_schemes()


def is_scheme(number: int, members: int) -> bool:
    """Whether a run of so many tensors may be coded under the scheme of this number.

    Example:
        >>> [is_scheme(number, 1) for number in (5, 6, FEW_MOVED, FEW_MOVED + 6)]
        [True, False, True, False]
    """
    if members > 1:
        return number < len(SHARED_SCHEMES)
    return number < len(SCHEMES) or FEW_MOVED <= number < FEW_MOVED + len(SCHEMES)
