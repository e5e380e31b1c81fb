"""A tensor on a lattice as a reader holds it: one byte a weight, and the few that do not fit one (ours).

Narrow cells hold k + 16 above three bits of history, so that nothing but this byte is needed to code the next
checkpoint; wide ones hold k + 128, for steps so fine that most k would not fit five bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.methods.lattice import motion_kernels as kernels
from dynaquant_core.methods.lattice.parts import row_parts
from dynaquant_core.methods.lattice.rows import StillRows
from dynaquant_core.methods.lattice.signs import ends_of
from dynaquant_core.quantize.lattice import MIDDLE, dequantise, key_from, offset_key, quantise
from dynaquant_core.state.pages import empty_tensor
from dynaquant_core.state.spec import TensorSpec

__all__ = ["NARROW", "WIDE", "Alphabet", "Cells", "cells_of"]

#: A tensor whose step is above this share of its spread is worth narrow cells: k = 15 is over 4 spreads.
NARROW_STEP = 0.28
#: Narrow cells give way to wide ones where more than one weight in so many is an outlier.
RARE = 256


@dataclass(frozen=True, slots=True)
class Alphabet:
    """How k lies in a cell: ``(k + zero) << shift``; cell 0 stands for an outlier, |k| >= zero.

    Attributes:
        shift: 3 above a history, or 0.
        zero: smallest |k| that does not fit.
    """

    shift: int
    zero: int

    @property
    def narrow(self) -> bool:
        """Whether cells hold a history."""
        return self.shift > 0


NARROW, WIDE = Alphabet(3, 16), Alphabet(0, 128)


@dataclass(frozen=True, slots=True)
class Cells:
    """A tensor on a lattice.

    Args:
        name: of the tensor; with the epoch it decides the offsets.
        spec: shape and dtype.
        packed: uint8[n], the cells.
        outliers: int32[m], k of the outliers in order of position.
        step: of the lattice.
        epoch: of the lattice.
        alphabet: `NARROW` or `WIDE`.
        factor: that values are multiplied by beside the step (`norm`).
        rows: that are not read off the lattice; None: there are none.
        edge: that no value passes on its way to zero (`signs`); None: there is none.
    """

    name: str
    spec: TensorSpec
    packed: NDArray[np.uint8]
    outliers: NDArray[np.int32]
    step: float
    epoch: int
    alphabet: Alphabet
    factor: float = 1.0
    rows: StillRows | None = None
    edge: float | None = None

    @property
    def key(self) -> int:
        """Of the offsets."""
        return offset_key(self.epoch, self.name)

    @property
    def histories(self) -> NDArray[np.uint8]:
        """Bytes whose lower three bits are histories; a single 0 where none are kept."""
        return self.packed if self.alphabet.narrow else np.zeros(1, np.uint8)

    def marks(self) -> NDArray[np.int64]:
        """Positions of the outliers."""
        least = 1 << self.alphabet.shift
        if self.packed.size and self.packed.min() >= least:  # as nearly everywhere, and five times as fast
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.packed < least)

    def middle(self) -> NDArray[np.bool_]:
        """Which weights have k = 0, bool[n]; all zeros do."""
        found: NDArray[np.bool_] = self.packed >> self.alphabet.shift == self.alphabet.zero
        return found

    def head(self, count: int) -> Cells:
        """The first ``count`` weights as a tensor of their own on the same lattice, all of them."""
        packed = self.packed[:count]
        escaped = int(np.count_nonzero(packed < (1 << self.alphabet.shift)))
        spec = TensorSpec((packed.size,), self.spec.dtype)
        return replace(self, spec=spec, packed=packed, outliers=self.outliers[:escaped], rows=None)

    def write(self, out: Tensor) -> None:
        """Decodes into a floating tensor of the same number of elements, on its device, in its dtype."""
        self._decode(self.key, out)
        if self.rows is not None:
            self.rows.write(out)

    def parts(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
        """Decodes the parts of `parts.row_parts`, one at a time: (which weights, [n] on the CPU)."""
        width, used = self.spec.numel // max(self.spec.shape[0], 1), 0
        for part in row_parts(self.spec):
            packed, out = self.packed[part], torch.empty(part.stop - part.start, dtype=dtype, device="cpu")
            far = self.outliers[used:]
            some = replace(self, packed=packed, outliers=far[:0])
            if far.size:
                some = replace(some, outliers=far[: some.marks().size])
            used += some.outliers.size
            some._decode(key_from(self.key, part.start), out)
            if self.rows is not None:
                self.rows.part(slice(part.start // width, part.stop // width)).write(out)
            yield part, out

    def _decode(self, key: int, out: Tensor) -> None:
        """Decodes what is read off the lattice, all of it, by the offsets of a key."""
        symbols, escapes = self.packed, self.outliers
        if self.alphabet.narrow:
            symbols = np.empty_like(self.packed)
            kernels.widen(self.packed, MIDDLE, self.alphabet.zero, symbols)
            if self.outliers.size:
                fits = np.abs(self.outliers.astype(np.int64)) < MIDDLE
                symbols[self.marks()] = np.where(fits, self.outliers + MIDDLE, 0).astype(np.uint8)
                escapes = self.outliers[~fits]
        dequantise(symbols, escapes, self.step * self.factor, key, out, ends_of(self.edge))

    def tensor(self, device: torch.device | str = "cpu") -> Tensor:
        """Decodes the tensor."""
        out = empty_tensor(self.spec, device)
        self.write(out)
        return out


def cells_of(
    name: str, tensor: Tensor, step: float, epoch: int, alphabet: Alphabet | None, spread: float
) -> Cells | None:
    """Puts a tensor on a lattice, with empty histories.

    Args:
        name: of the tensor.
        tensor: floating, of any device.
        step: of `quantize.lattice.steps_of`.
        epoch: of the lattice.
        alphabet: None: the better one.
        spread: standard deviation of the tensor's values, by which the alphabet is chosen.

    Returns:
        None where a weight is further than 2^31 steps from zero.
    """
    spec = TensorSpec.of(tensor)
    packed = np.empty(spec.numel, np.uint8)
    escapes = quantise(tensor, step, offset_key(epoch, name), packed)
    if escapes is None:
        return None
    count = kernels.outside(packed, MIDDLE, NARROW.zero - 1)
    if alphabet is None:
        rare = count * RARE <= packed.size
        alphabet = NARROW if rare and step >= NARROW_STEP * spread else WIDE
    outliers = escapes
    if alphabet.narrow:
        outliers = _outliers(packed, escapes) if count else escapes
        kernels.narrow(packed, np.uint8(MIDDLE), np.uint8(NARROW.zero))
    return Cells(name, spec, packed, outliers, step, epoch, alphabet)


def _outliers(symbols: NDArray[np.uint8], escapes: NDArray[np.int32]) -> NDArray[np.int32]:
    """K of the weights that do not fit narrow cells, in order, int32[m]; ``escapes`` fit no byte either."""
    far = symbols[np.abs(symbols.astype(np.int16) - MIDDLE) >= NARROW.zero].astype(np.int32)
    found = far - MIDDLE
    found[far == 0] = escapes
    return found
