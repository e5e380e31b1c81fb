"""Weights too far from zero for a cell: their k, against the base's where it has one in the same place."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding import encode_smallest
from dynaquant_core.methods.base import Stream
from dynaquant_core.methods.lattice.cells import Cells
from dynaquant_core.methods.words import Plain

__all__ = ["outlier_stream", "outlier_words", "outliers_of"]

CODECS = ("constant", "planes", "zstd", "raw")


def outlier_stream(name: str, words: NDArray[np.uint32]) -> Stream | None:
    """The outliers of a run, filed under its first tensor on a lattice; there is no telling their size."""
    return Stream(name, "outliers", *encode_smallest(words, None, CODECS)) if words.size else None


def outlier_words(cells: Cells, base: Cells | Plain | None) -> NDArray[np.uint32]:
    """Outliers against the base's at the same place of the same lattice, alternately signed: uint32[m].

    Differences wrap around at 32 bits, as sums do when they are read.
    """
    marks = cells.marks() if cells.outliers.size else None
    away = (cells.outliers.astype(np.int64) - expected(cells, base, marks)).astype(np.int32)
    return ((away << 1) ^ (away >> 31)).view(np.uint32)


def outliers_of(words: NDArray[np.uint32], cells: Cells, base: Cells | Plain | None) -> NDArray[np.int32]:
    """Undoes `outlier_words` for cells whose outliers are not known yet; int32[m]."""
    away = (words >> 1).astype(np.int64) ^ -(words & 1).astype(np.int64)
    return (away + expected(cells, base, cells.marks() if words.size else None)).astype(np.int32)


def expected(
    cells: Cells, base: Cells | Plain | None, marks: NDArray[np.int64] | None
) -> NDArray[np.int64] | int:
    """K of the base where both have an outlier on one lattice; 0 elsewhere."""
    if marks is None or not isinstance(base, Cells) or (base.step, base.epoch) != (cells.step, cells.epoch):
        return 0
    theirs = base.marks()
    if not theirs.size:
        return 0
    place = np.minimum(np.searchsorted(theirs, marks), theirs.size - 1)
    return np.where(theirs[place] == marks, base.outliers[place].astype(np.int64), 0)
