"""From what a base holds of a tensor to contexts, from cells to residuals, and back.

Where a lattice stays, a cell of the base says what to expect of the next, by tables of 256.  Where there is
another lattice, the base's values are laid on it first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.lattice import motion_kernels as kernels
from dynaquant_core.methods.lattice.cells import Alphabet, Cells
from dynaquant_core.methods.lattice.contexts import COUNT, FIRST_NEW
from dynaquant_core.methods.lattice.kept import IMPOSSIBLE, first_cells, first_residuals, tables
from dynaquant_core.methods.lattice.moved_kernels import remember
from dynaquant_core.methods.lattice.parts import parts_of
from dynaquant_core.methods.words import Plain
from dynaquant_core.quantize.lattice import offset_key, offsets

__all__ = ["FirstLattice", "KeptLattice", "Motion", "NewLattice", "look_up", "motion"]

NONE: Final = np.zeros(1, np.uint8)
#: Where keys are fine contexts already.
THEMSELVES: Final = np.arange(COUNT, dtype=np.uint8)

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class KeptLattice:
    """A tensor on the lattice of its base.

    Args:
        base: uint8[n], the base's cells.
        alphabet: theirs.
    """

    base: Bytes
    alphabet: Alphabet

    @property
    def keys(self) -> Bytes:
        """What contexts are looked up by, uint8[n]."""
        return self.base

    @property
    def fine(self) -> Bytes:
        """The fine context of each key, uint8[256]."""
        return tables(self.alphabet).contexts

    def residuals(self, cells: Cells) -> tuple[NDArray[Any], bool]:
        """(residuals, uint8[n] or, of wide cells, uint16[n]; whether one is not zero)."""
        out = _room(cells.packed.size, self.alphabet)
        seen = kernels.look_up_pairs(self.base, cells.packed, 8, tables(self.alphabet).residuals, out)
        return out, bool(seen)

    def refill(self, residuals: NDArray[Any], name: str) -> Bytes:
        """Cells, histories included, uint8[n].

        Raises:
            CorruptFileError: a residual leads out of the alphabet.
        """
        cells, known = np.empty(residuals.size, np.uint8), tables(self.alphabet)
        good = residuals.size == 0 or residuals.max() < 1 << known.bits
        if good:
            seen = kernels.look_up_pairs(self.base, residuals, known.bits, known.cells, cells)
            good = not seen & IMPOSSIBLE
        _require_cells(good, name)
        return cells

    def remember(self, cells: Bytes) -> None:
        """Writes into cells, in place, how each weight has moved."""
        if self.alphabet.narrow:
            remember(self.base, cells)


@dataclass(frozen=True, slots=True)
class FirstLattice:
    """A tensor without a base: k = 0 is expected of every weight, and histories stay empty.

    Args:
        n: its weights.
        alphabet: of its cells.
    """

    n: int
    alphabet: Alphabet

    @property
    def keys(self) -> Bytes:
        """As `KeptLattice.keys`: there is one."""
        return np.zeros(self.n, np.uint8)

    @property
    def fine(self) -> Bytes:
        """The fine context of that key."""
        return NONE

    def residuals(self, cells: Cells) -> tuple[NDArray[Any], bool]:
        """As `KeptLattice.residuals`."""
        out = look_up(cells.packed, first_residuals(self.alphabet), _room(cells.packed.size, self.alphabet))
        return out, bool(out.any())

    def refill(self, residuals: NDArray[Any], name: str) -> Bytes:
        """As `KeptLattice.refill`."""
        known = first_cells(self.alphabet)
        most = int(residuals.max(initial=0))
        # Only the last but one residual has no cell, so nearly always the largest says that all is well.
        good = most < known.size and (most < known.size - 2 or not (residuals == known.size - 2).any())
        _require_cells(good, name)
        return look_up(residuals, known, np.empty(residuals.size, np.uint8))

    def remember(self, cells: Bytes) -> None:
        """As `KeptLattice.remember`; there is nothing to write."""


@dataclass(frozen=True, slots=True)
class NewLattice:
    """A tensor on a lattice that its base is not on.

    Args:
        keys: uint8[n], fine contexts.
        aims: int16[n], see `motion_kernels`.
        histories: uint8[n] or [1], of the base.
        alphabet: of the tensor's cells.
    """

    keys: Bytes
    aims: NDArray[np.int16]
    histories: Bytes
    alphabet: Alphabet

    @property
    def fine(self) -> Bytes:
        """The fine context of each key: itself."""
        return THEMSELVES

    def residuals(self, cells: Cells) -> tuple[NDArray[Any], bool]:
        """As `KeptLattice.residuals`."""
        out = _room(cells.packed.size, self.alphabet)
        moved = kernels.fold(cells.packed, self.alphabet.shift, self.alphabet.zero, self.aims, out)
        return out, moved > 0

    def refill(self, residuals: NDArray[Any], name: str) -> Bytes:
        """As `KeptLattice.refill`."""
        cells = np.empty(residuals.size, np.uint8)
        shift, zero = self.alphabet.shift, self.alphabet.zero
        _require_cells(not kernels.unfold(residuals, shift, zero, self.aims, cells), name)
        self.remember(cells)
        return cells

    def remember(self, cells: Bytes) -> None:
        """As `KeptLattice.remember`."""
        if self.alphabet.narrow:
            kernels.write_history(cells, self.aims, self.alphabet.zero, self.histories)


Motion = FirstLattice | KeptLattice | NewLattice


def motion(
    base: Cells | Plain | None, name: str, step: float, epoch: int, alphabet: Alphabet, n: int
) -> Motion:
    """What ``base`` says of the n weights of a tensor on the lattice of ``step`` and ``epoch``."""
    if base is None:
        return FirstLattice(n, alphabet)
    if isinstance(base, Cells) and (base.step, base.epoch, base.alphabet) == (step, epoch, alphabet):
        return KeptLattice(base.packed, alphabet)
    contexts, aims = np.empty(n, np.uint8), np.empty(n, np.int16)
    histories, key = base.histories if isinstance(base, Cells) else NONE, offset_key(epoch, name)
    for part, values in parts_of(base, torch.float32):  # of a float64 tensor, rounded
        drawn, before = offsets(key, values.numel(), part.start), histories
        if histories.size == n:
            before = histories[part]
        kernels.aim_at(
            values.numpy(),
            drawn,
            np.float32(step),
            alphabet.zero - 1,
            before,
            FIRST_NEW,
            contexts[part],
            aims[part],
        )
    return NewLattice(contexts, aims, histories, alphabet)


def look_up(keys: NDArray[Any], table: NDArray[np.uint16], out: NDArray[Any] | None = None) -> NDArray[Any]:
    """``table[keys]``, uint8[n] where the table's values fit, else uint16[n]; into ``out`` if given."""
    if out is None:
        out = np.empty(keys.size, np.uint8 if table.max() < 256 else np.uint16)
    kernels.look_up(keys, table.astype(out.dtype, copy=False), out)
    return out


def _room(n: int, alphabet: Alphabet) -> NDArray[Any]:
    """Room for n residuals."""
    return np.empty(n, np.uint8 if alphabet.narrow else np.uint16)


def _require_cells(good: bool, name: str) -> None:
    if not good:
        raise CorruptFileError(f"tensor {name}: a residual leads to a cell that does not exist.")
