"""The residuals of a run of tensors: joined, counted, coded under the scheme that makes them smallest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding import encode_smallest
from dynaquant_core.coding.codec import CountedCodec
from dynaquant_core.coding.counts import joint_counts
from dynaquant_core.coding.rans import rans_bytes
from dynaquant_core.coding.registry import codec_by_name
from dynaquant_core.methods.base import Stream
from dynaquant_core.methods.lattice.cells import Cells
from dynaquant_core.methods.lattice.contexts import CLASSES, SCHEMES, SHARED, SHARED_SCHEMES
from dynaquant_core.methods.lattice.motion import motion, residuals
from dynaquant_core.methods.words import Plain

__all__ = [
    "RunCode",
    "fine_contexts",
    "outlier_stream",
    "outlier_words",
    "outliers_of",
    "run_code",
    "tables_of",
]

OUTLIER_CODECS = ("constant", "planes", "zstd", "raw")

Counts = NDArray[np.int64]
Bases = Mapping[str, Cells | Plain]


@dataclass(frozen=True, slots=True)
class RunCode:
    """A run about to be coded.

    Args:
        names: of its tensors that are on a lattice.
        groups: class of each.
        values: residuals, uint8[n] or uint16[n]; empty where all are zero.
        fine: contexts, uint8[n] or uint16[n].
        joint: int64[contexts, levels], counts under the scheme.
        scheme: the cheapest.
        outliers: their stream; None where there is none.
        bytes: of all streams, predicted.
    """

    names: tuple[str, ...]
    groups: tuple[int, ...]
    values: NDArray[Any]
    fine: NDArray[Any]
    joint: Counts
    scheme: int
    outliers: Stream | None
    bytes: int

    def streams(self) -> Iterator[Stream]:
        """The run's streams, named after its first tensor on a lattice; none where nothing moved."""
        if self.values.size:
            table = tables_of(len(self.groups))[self.scheme]
            codec = codec_by_name("rans_context" if self.joint.shape[0] > 1 else "rans")
            assert isinstance(codec, CountedCodec)
            contexts = contexts_of(self.fine, table)
            yield Stream(
                self.names[0], "residuals", codec.id, codec.encode_counted(self.values, contexts, self.joint)
            )
        if self.outliers is not None:
            yield self.outliers


def tables_of(members: int) -> tuple[NDArray[np.uint16], ...]:
    """The schemes of a run with so many tensors on a lattice."""
    return SCHEMES if members == 1 else SHARED_SCHEMES


def contexts_of(fine: NDArray[Any], table: NDArray[np.uint16]) -> NDArray[Any]:
    """Contexts under a scheme, uint8[n] where they fit."""
    return np.take(table.astype(np.uint8) if table.max() < 256 else table, fine)


def fine_contexts(parts: Sequence[NDArray[np.uint8]], groups: Sequence[int]) -> NDArray[Any]:
    """Contexts of a run before a scheme merges them."""
    if len(parts) == 1:
        return parts[0]
    count = int(SHARED.max()) + 1
    return np.concatenate(
        [np.take(SHARED + np.uint16(group * count), part) for part, group in zip(parts, groups, strict=True)]
    )


def run_code(cells: Sequence[Cells], base: Bases) -> RunCode:
    """Takes the residuals of a run's tensors and finds how to code them."""
    values, contexts, groups, outliers = [], [], [], []
    moved = 0
    for own in cells:
        known = motion(base.get(own.name), own.name, own.step, own.epoch, own.alphabet, own.packed.size)
        residual, moves = residuals(own, known)
        moved += moves
        values.append(residual)
        contexts.append(known.contexts)
        groups.append(group_of(residual))
        outliers.append(outlier_words(own, base.get(own.name)))
    names, far = tuple(own.name for own in cells), outlier_stream(cells[0].name, np.concatenate(outliers))
    beside = 0 if far is None else len(far.payload)
    if not moved:
        none = np.zeros(0, np.uint8)
        return RunCode(names, tuple(groups), none, none, np.zeros((1, 1), np.int64), 0, far, beside)
    joined = values[0] if len(values) == 1 else np.concatenate(values)
    fine = fine_contexts(contexts, groups)
    scheme, joint, size = cheapest(joint_counts(joined, fine), tables_of(len(cells)))
    return RunCode(names, tuple(groups), joined, fine, joint, scheme, far, size + beside)


def group_of(residual: NDArray[Any]) -> int:
    """Class of a tensor within a run: octaves of its mean residual."""
    return min(max(round(log2(float(residual.mean()) + 1 / 64)) + 5, 0), CLASSES - 1)


def cheapest(joint: Counts, schemes: Sequence[NDArray[np.uint16]]) -> tuple[int, Counts, int]:
    """(number, counts, bytes) of the scheme that codes symbols with these counts in fewest bytes."""
    found = []
    for number, table in enumerate(schemes):
        rows = table[: joint.shape[0]]
        merged = np.zeros((int(rows.max()) + 1, joint.shape[1]), np.int64)
        np.add.at(merged, rows, joint)
        merged = merged[: int(np.flatnonzero(merged.any(axis=1))[-1]) + 1]  # as contexts are counted
        found.append((rans_bytes(merged), number, merged))
    size, number, merged = min(found, key=lambda one: one[:2])
    return number, merged, size


def outlier_stream(name: str, words: NDArray[np.uint32]) -> Stream | None:
    """The outliers of a run, filed under its first tensor on a lattice; there is no telling their size."""
    return Stream(name, "outliers", *encode_smallest(words, None, OUTLIER_CODECS)) if words.size else None


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
