"""From what a base holds of a tensor to contexts and aims, and from residuals back to cells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.errors import CorruptFileError
from dynaquant_core.methods.lattice import motion_kernels as kernels
from dynaquant_core.methods.lattice.cells import Alphabet, Cells
from dynaquant_core.methods.lattice.contexts import FIRST_NEW, aim_table, context_table
from dynaquant_core.methods.words import Plain
from dynaquant_core.quantize.lattice import offset_key, offsets

__all__ = ["Motion", "motion", "refill", "residuals"]

NONE = np.zeros(1, np.uint8)

tables = cache(lambda alphabet: (context_table(alphabet), aim_table(alphabet)))


@dataclass(frozen=True, slots=True)
class Motion:
    """What is known of a tensor before its residuals.

    Args:
        contexts: uint8[n], fine ones.
        aims: int16[n].
        histories: uint8[n] or [1], of the base.
        based: whether a base is held, so that residuals are moves.
    """

    contexts: NDArray[np.uint8]
    aims: NDArray[np.int16]
    histories: NDArray[np.uint8]
    based: bool


def motion(
    base: Cells | Plain | None, name: str, step: float, epoch: int, alphabet: Alphabet, n: int
) -> Motion:
    """What ``base`` says of the n weights of a tensor on the lattice of ``step`` and ``epoch``."""
    if base is None:
        return Motion(np.zeros(n, np.uint8), np.ones(n, np.int16), NONE, based=False)
    contexts, aims = np.empty(n, np.uint8), np.empty(n, np.int16)
    histories = base.histories if isinstance(base, Cells) else NONE
    if isinstance(base, Cells) and (base.step, base.epoch, base.alphabet) == (step, epoch, alphabet):
        kernels.look_up(base.packed, *tables(alphabet), contexts, aims)
        return Motion(contexts, aims, histories, based=True)
    values = _values(base, n)
    drawn = offsets(offset_key(epoch, name), n)
    kernels.aim_at(values, drawn, np.float32(step), alphabet.zero - 1, histories, FIRST_NEW, contexts, aims)
    return Motion(contexts, aims, histories, based=True)


def _values(base: Cells | Plain, n: int) -> NDArray[np.float32]:
    """The base's values as float32[n]; of a float64 tensor, rounded."""
    out = torch.empty(n, dtype=torch.float32)
    if isinstance(base, Cells):
        base.write(out)
    else:
        out.copy_(base.tensor().reshape(-1))
    return out.numpy()


def residuals(cells: Cells, known: Motion) -> tuple[NDArray[Any], int]:
    """(residuals, uint8[n] or, of wide cells, uint16[n]; how many are not zero)."""
    out = np.empty(cells.packed.size, np.uint8 if cells.alphabet.narrow else np.uint16)
    moved = kernels.fold(cells.packed, cells.alphabet.shift, cells.alphabet.zero, known.aims, out)
    return out, moved


def refill(residual: NDArray[Any], known: Motion, alphabet: Alphabet, name: str) -> NDArray[np.uint8]:
    """Cells, histories included, uint8[n].

    Raises:
        CorruptFileError: a residual leads out of the alphabet.
    """
    packed = np.empty(residual.size, np.uint8)
    if kernels.unfold(residual, alphabet.shift, alphabet.zero, known.aims, packed):
        raise CorruptFileError(f"tensor {name}: a residual leads to a cell that does not exist.")
    remember(packed, known, alphabet)
    return packed


def remember(packed: NDArray[np.uint8], known: Motion, alphabet: Alphabet) -> None:
    """Writes into cells, in place, how each weight has moved; there is nothing to write without a base."""
    if alphabet.narrow and known.based:
        kernels.write_history(packed, known.aims, alphabet.zero, known.histories)
