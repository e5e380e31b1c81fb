"""A large tensor of which few weights left their cell: flags say which, those alone have residuals (ours).

The flags' chances depend on how long ago a weight last moved, which is nearly all that `contexts` know of
whether it moves; so this takes hardly more bytes than a residual for each weight, and half the time to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding.counts import joint_counts
from dynaquant_core.coding.flags import flags_bytes
from dynaquant_core.coding.registry import counted_codec
from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.base import Stream, StreamSource
from dynaquant_core.methods.lattice import moved_kernels as kernels
from dynaquant_core.methods.lattice.cells import Cells
from dynaquant_core.methods.lattice.contexts import FEW_MOVED, SCHEMES
from dynaquant_core.methods.lattice.kept import IMPOSSIBLE, tables
from dynaquant_core.methods.lattice.motion import KeptLattice, motion
from dynaquant_core.methods.lattice.outliers import outlier_stream, outlier_words
from dynaquant_core.methods.lattice.run_code import Keys, cheapest
from dynaquant_core.methods.streams import decode_stream
from dynaquant_core.methods.words import Plain

__all__ = ["FewMoved", "few_moved", "refill"]

#: Smaller tensors would feel the streams' fixed bytes, and gain no time to speak of.
LARGE = 1 << 18
#: Positions are counted in 32 bits.
LARGEST = 1 << 32
#: Few is at most one weight in so many; beyond it a residual for each is as fast.
RARE = 8

Counts = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class FewMoved:
    """A tensor about to be coded; the counterpart of `run_code.RunCode`.

    Args:
        names: its name.
        flags: uint8[ceil(n / 4)], which weights moved, four a byte.
        ages: uint8[ceil(n / 4)], how long ago those last moved, two bits each.
        joint: int64[256, 16], counts of flags by ages.
        values: uint8[m], residuals of the moved weights less 1.
        keys: of their contexts.
        residuals: counts of the values under the scheme.
        scheme: `FEW_MOVED` and the cheapest.
        outliers: their stream; None where there is none.
        bytes: of all streams, predicted.
    """

    names: tuple[str, ...]
    flags: Bytes
    ages: Bytes
    joint: Counts
    values: Bytes
    keys: Keys
    residuals: Counts
    scheme: int
    outliers: Stream | None
    bytes: int

    #: Class of the tensor within a run, which it has for itself.
    groups = (0,)

    def streams(self) -> Iterator[Stream]:
        """The tensor's streams."""
        (name,) = self.names
        contexts = self.keys.contexts(SCHEMES[self.scheme - FEW_MOVED])
        yield _stream(name, "moved", "flags", self.flags, self.ages, self.joint)
        kind = "rans_context" if self.residuals.shape[0] > 1 else "rans"
        yield _stream(name, "residuals", kind, self.values, contexts, self.residuals)
        if self.outliers is not None:
            yield self.outliers


def _stream(name: str, kind: str, coder: str, values: Bytes, contexts: Bytes, joint: Counts) -> Stream:
    codec = counted_codec(coder)
    assert codec is not None
    return Stream(name, kind, codec.id, codec.encode_counted(values, contexts, joint))


def few_moved(cells: Sequence[Cells], base: Mapping[str, Cells | Plain]) -> FewMoved | None:
    """How to code a run in which few weights moved; None where that is not so, or is not worth it."""
    if len(cells) != 1 or not LARGE <= cells[0].packed.size < LARGEST or not cells[0].alphabet.narrow:
        return None
    own, below = cells[0], base.get(cells[0].name)
    known = motion(below, own.name, own.step, own.epoch, own.alphabet, own.packed.size)
    if not isinstance(known, KeptLattice):
        return None
    before = _words(known.base)
    flags = np.empty(before.size, np.uint8)
    moved = kernels.flag_moves(before, _words(own.packed), flags)
    if not 0 < moved * RARE <= own.packed.size:
        return None
    where, ages = _places(flags, moved), _ages(before)
    at, values = _at(known.base, where), np.empty(where.size, np.uint8)
    kernels.gather_residuals(at, own.packed, where, tables(own.alphabet).residuals, values)
    keys = Keys(at, known.fine)
    scheme, residuals, size = cheapest(joint_counts(values, at), keys.fine, SCHEMES)
    joint = joint_counts(flags, ages)
    far = outlier_stream(own.name, outlier_words(own, below))
    size += flags_bytes(joint) + (0 if far is None else len(far.payload))
    return FewMoved((own.name,), flags, ages, joint, values, keys, residuals, FEW_MOVED + scheme, far, size)


def refill(source: StreamSource, name: str, known: KeptLattice, scheme: int) -> Bytes:
    """The cells of a tensor, histories included, uint8[n], from its streams and the base's cells.

    Raises:
        CorruptFileError: the streams are not ones that `FewMoved` writes for such a base.
    """
    n, before = known.base.size, _words(known.base)
    if n >= LARGEST:
        raise CorruptFileError(f"tensor {name}: {n} weights cannot be flagged, the most is {LARGEST - 1}.")
    flags = np.empty(before.size, np.uint8)
    decode_stream(source, name, "moved", flags, _ages(before))
    if flags.size and (flags.max() >= 16 or flags[-1] >> (n - 4 * (n // 4) or 4)):
        raise CorruptFileError(f"tensor {name}: its stream of moves flags weights that do not exist.")
    cells = np.empty(before.size, np.uint32)
    kernels.age_cells(before, cells)
    found = cells.view(np.uint8)[:n]
    where, entries = _places(flags, kernels.count_flags(flags)), tables(known.alphabet)
    at, values = _at(known.base, where), np.empty(where.size, np.uint8)
    decode_stream(source, name, "residuals", values, Keys(at, known.fine).contexts(SCHEMES[scheme]))
    if kernels.move_cells(at, values, where, entries.cells, entries.bits, found) >= IMPOSSIBLE:
        raise CorruptFileError(f"tensor {name}: a residual leads to a cell that does not exist.")
    return found


def _words(packed: Bytes) -> Words:
    """Cells four a word, the first lowest, cells of 0 behind them: uint32[ceil(n / 4)]."""
    missing = -packed.size % 4
    whole = np.append(packed, np.zeros(missing, np.uint8)) if missing else np.ascontiguousarray(packed)
    return whole.view("<u4")


def _at(base: Bytes, where: Words) -> Bytes:
    """The base's cells at some positions."""
    at = np.empty(where.size, np.uint8)
    kernels.gather_cells(base, where, at)
    return at


def _ages(words: Words) -> Bytes:
    ages = np.empty(words.size, np.uint8)
    kernels.gather_ages(words, ages)
    return ages


def _places(flags: Bytes, count: int) -> Words:
    """Positions of the set flags, uint32[count]."""
    where = np.empty(count + 1, np.uint32)
    kernels.places(flags, np.empty(flags.size + 1, np.uint32), where)
    return where[:count]
