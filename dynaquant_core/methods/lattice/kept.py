"""Tables for a lattice that stays: a cell of the base and one thing more decide everything.

They say what the kernels of a lattice that does not stay compute for each weight, for all pairs there are;
so a weight costs one look-up, and nothing is branched on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.methods.lattice import motion_kernels as kernels
from dynaquant_core.methods.lattice.cells import Alphabet
from dynaquant_core.methods.lattice.contexts import aim_table, context_table

__all__ = ["IMPOSSIBLE", "Tables", "first_cells", "first_residuals", "tables"]

#: Set in an entry of `Tables.cells` whose residual leads out of the alphabet.
IMPOSSIBLE: Final = 1 << 8


@dataclass(frozen=True, slots=True)
class Tables:
    """What follows from a cell of the base, b, for one alphabet.

    Args:
        contexts: uint8[256], fine context at b.
        residuals: uint16[2^16], residual of cell c at b << 8 | c, whatever their histories.
        bits: of the largest residual.
        cells: uint16[2^(8 + bits)], cell with its history, or `IMPOSSIBLE`, of residual r at b << bits | r.
    """

    contexts: NDArray[np.uint8]
    residuals: NDArray[np.uint16]
    bits: int
    cells: NDArray[np.uint16]


@cache
def tables(alphabet: Alphabet) -> Tables:
    """The tables of one alphabet.

    Example:
        >>> from dynaquant_core.methods.lattice.cells import NARROW
        >>> base, same, up = 16 << 3, 0, 1  # k = 0, never moved; a residual of 1 is one cell upwards
        >>> [int(tables(NARROW).cells[base << 6 | residual]) - base for residual in (same, up)]
        [0, 9]
    """
    shift, zero, bits = alphabet.shift, alphabet.zero, (4 * alphabet.zero - 1).bit_length()
    base, cell = np.divmod(np.arange(1 << 16), 256)
    residuals = np.empty(1 << 16, np.uint16)
    kernels.fold(cell.astype(np.uint8), shift, zero, aim_table(alphabet)[base], residuals)

    base, residual = np.divmod(np.arange(1 << (8 + bits)), 1 << bits)
    found = np.empty(base.size, np.uint8)
    kernels.unfold(residual.astype(np.uint16), shift, zero, aim_table(alphabet)[base], found)
    good = residuals[base << 8 | found] == residual
    cells = np.where(good, _remembered(alphabet, base, found), IMPOSSIBLE).astype(np.uint16)
    return Tables(context_table(alphabet), residuals, bits, cells)


def _remembered(alphabet: Alphabet, base: NDArray[np.int64], cells: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Cells with the histories that they have after these of the base; wide ones have none."""
    noted = cells.copy()
    if alphabet.narrow:
        kernels.write_history(noted, aim_table(alphabet)[base], alphabet.zero, base.astype(np.uint8))
    return noted.astype(np.uint16)


@cache
def first_residuals(alphabet: Alphabet) -> NDArray[np.uint16]:
    """Residual of each cell of a tensor without a base, uint16[256]."""
    return tables(alphabet).residuals[alphabet.zero << alphabet.shift << 8 :][:256]


@cache
def first_cells(alphabet: Alphabet) -> NDArray[np.uint16]:
    """Cell of each residual of a tensor without a base, uint16[2 zero + 1]; the last but one has none.

    Example:
        >>> from dynaquant_core.methods.lattice.cells import NARROW
        >>> [int(cell >> 3) - 16 for cell in first_cells(NARROW)[[0, 1, 2, 29, 30, 32]]]
        [0, 1, -1, 15, -15, -16]
    """
    known = tables(alphabet)
    start = alphabet.zero << alphabet.shift << known.bits
    found = known.cells[start : start + 2 * alphabet.zero + 1]
    return np.where(found < IMPOSSIBLE, found & ~np.uint16(7 if alphabet.narrow else 0), 0).astype(np.uint16)
