"""The residuals of a run of tensors: joined, counted, coded under the scheme that makes them smallest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.counts import joint_counts
from dynaquant_core.coding.counts_kernels import add_rows
from dynaquant_core.coding.rans import rans_bytes
from dynaquant_core.coding.rans_model import entropy_bits
from dynaquant_core.coding.registry import counted_codec
from dynaquant_core.methods.base import Stream
from dynaquant_core.methods.lattice.cells import Cells
from dynaquant_core.methods.lattice.contexts import CLASSES, SCHEMES, SHARED, SHARED_SCHEMES
from dynaquant_core.methods.lattice.motion import Motion, look_up, motion
from dynaquant_core.methods.lattice.outliers import outlier_stream, outlier_words
from dynaquant_core.methods.words import Plain

__all__ = [
    "Keys",
    "RunCode",
    "cheapest",
    "run_code",
    "run_keys",
    "tables_of",
]

Counts = NDArray[np.int64]
Bases = Mapping[str, Cells | Plain]


@dataclass(frozen=True, slots=True)
class Keys:
    """What the contexts of a run are looked up by.

    Args:
        of: uint8[n] or uint16[n], one a weight; of a tensor that stayed on its lattice, the base's own cells.
        fine: the context of each key before a scheme merges them.
    """

    of: NDArray[Any]
    fine: NDArray[Any]

    def contexts(self, scheme: NDArray[np.uint16]) -> NDArray[Any]:
        """Contexts under a scheme, uint8[n] where they fit."""
        table = scheme[self.fine]
        return look_up(self.of, table) if table.any() else np.zeros(self.of.size, np.uint8)


@dataclass(frozen=True, slots=True)
class RunCode:
    """A run about to be coded.

    Args:
        names: of its tensors that are on a lattice.
        groups: class of each.
        values: residuals, uint8[n] or uint16[n]; empty where all are zero.
        keys: of the contexts.
        joint: int64[contexts, levels], counts under the scheme.
        scheme: the cheapest.
        outliers: their stream; None where there is none.
        bytes: of all streams, predicted.
    """

    names: tuple[str, ...]
    groups: tuple[int, ...]
    values: NDArray[Any]
    keys: Keys
    joint: Counts
    scheme: int
    outliers: Stream | None
    bytes: int

    def streams(self) -> Iterator[Stream]:
        """The run's streams, named after its first tensor on a lattice; none where nothing moved."""
        if self.values.size:
            table = tables_of(len(self.groups))[self.scheme]
            codec = counted_codec("rans_context" if self.joint.shape[0] > 1 else "rans")
            assert codec is not None
            contexts = self.keys.contexts(table)
            yield Stream(
                self.names[0], "residuals", codec.id, codec.encode_counted(self.values, contexts, self.joint)
            )
        if self.outliers is not None:
            yield self.outliers


def tables_of(members: int) -> tuple[NDArray[np.uint16], ...]:
    """The schemes of a run with so many tensors on a lattice."""
    return SCHEMES if members == 1 else SHARED_SCHEMES


def run_keys(known: Sequence[Motion], groups: Sequence[int]) -> Keys:
    """Keys of a run's tensors, end to end; tensors that share a run are told apart by class."""
    if len(known) == 1:
        return Keys(known[0].keys, known[0].fine)
    count = int(SHARED.max()) + 1
    ends = np.cumsum([moves.keys.size for moves in known]).tolist()
    joined = np.empty(ends[-1], np.uint16)
    for moves, group, end in zip(known, groups, ends, strict=True):
        look_up(
            moves.keys, SHARED[moves.fine] + np.uint16(group * count), joined[end - moves.keys.size : end]
        )
    return Keys(joined, np.arange(CLASSES * count))


def run_code(cells: Sequence[Cells], base: Bases) -> RunCode:
    """Takes the residuals of a run's tensors and finds how to code them."""
    values, known, outliers = [], [], []
    moved = 0
    for own in cells:
        moves = motion(base.get(own.name), own.name, own.step, own.epoch, own.alphabet, own.packed.size)
        residual, count = moves.residuals(own)
        moved += count
        values.append(residual)
        known.append(moves)
        outliers.append(outlier_words(own, base.get(own.name)))
    names, groups = tuple(own.name for own in cells), tuple(group_of(residual) for residual in values)
    far = outlier_stream(cells[0].name, np.concatenate(outliers))
    beside = 0 if far is None else len(far.payload)
    keys = run_keys(known, groups)
    if not moved:
        return RunCode(names, groups, np.zeros(0, np.uint8), keys, np.zeros((1, 1), np.int64), 0, far, beside)
    joined = values[0] if len(values) == 1 else np.concatenate(values)
    scheme, joint, size = cheapest(joint_counts(joined, keys.of), keys.fine, tables_of(len(cells)))
    return RunCode(names, groups, joined, keys, joint, scheme, far, size + beside)


def group_of(residual: NDArray[Any]) -> int:
    """Class of a tensor within a run: octaves of its mean residual."""
    return min(max(round(log2(float(residual.mean()) + 1 / 64)) + 5, 0), CLASSES - 1)


def cheapest(
    joint: Counts, fine: NDArray[Any], schemes: Sequence[NDArray[np.uint16]]
) -> tuple[int, Counts, int]:
    """(number, counts, bytes) of the scheme that codes symbols with these counts in fewest bytes.

    Args:
        joint: int64[keys, levels].
        fine: context of each key before a scheme merges them.
        schemes: to choose from.

    Tables are fitted only for schemes whose entropy alone is not more than the best one costs.
    """
    merged = [_merged(joint, scheme[fine[: joint.shape[0]]]) for scheme in schemes]
    least = [entropy_bits(counts) / 8 for counts in merged]
    best = (0, -1)
    for number in sorted(range(len(schemes)), key=least.__getitem__):
        if best[1] >= 0 and least[number] > best[0]:
            break
        size = rans_bytes(merged[number])
        if best[1] < 0 or (size, number) < best:
            best = size, number
    size, number = best
    return number, merged[number], size


def _merged(joint: Counts, rows: NDArray[np.uint16]) -> Counts:
    """Counts with the rows of a context added up, as they are counted: without empty ones at the end."""
    merged = np.zeros((int(rows.max()) + 1, joint.shape[1]), np.int64)
    add_rows(joint, rows, merged)
    return merged[: int(np.flatnonzero(merged.any(axis=1))[-1]) + 1]
