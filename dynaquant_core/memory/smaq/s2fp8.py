"""S2FP8: eight-bit floats of a tensor that was shifted and squeezed to fit them (arXiv 2001.05674).

With mu the mean and m the highest of log2 |x| over the values that are not zero, a = 15 / (m - mu) and
b = -a mu, what is stored is sign(x) 2^(a log2 |x| + b) as e5m2: its logarithms have mean 0 and reach 15.
Where all magnitudes are equal a is 1.  Zeros stay zero, and so does what the squeezed tensor has below 2^-17.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from dynaquant_core.memory.smaq.format import require_floating, require_generator
from dynaquant_core.memory.smaq.statistics import Statistics, ends_of

__all__ = ["S2FP8", "PackedSqueezed"]

#: What the highest logarithm becomes; e5m2 ends just below 2^16.
REACH: Final = 15.0

#: Shift and squeeze, float32 each.
STATISTICS_BYTES: Final = 8


@dataclass(frozen=True, eq=False, slots=True)
class PackedSqueezed:
    """A tensor as S2FP8 stores it: e5m2 values, a and b."""

    values: Tensor
    squeeze: float
    shift: float
    dtype: torch.dtype
    statistics: Statistics | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the values, and of a and b."""
        return self.values.nbytes + STATISTICS_BYTES

    def decode(self) -> Tensor:
        """See `format.Packed`."""
        held = self.values.float()
        magnitude = torch.exp2((held.abs().log2() - self.shift) / self.squeeze)
        largest = min(torch.finfo(self.dtype).max, torch.finfo(torch.float32).max)
        return torch.copysign(magnitude.clamp_(max=largest), held).to(self.dtype)


@final
@dataclass(frozen=True, slots=True)
class S2FP8:
    """The format; it has no settings and rounds to the nearest.

    Example:
        >>> packed = S2FP8().encode(torch.tensor([0.0, -1e-6, 3.0]), torch.Generator())
        >>> packed.nbytes, [f"{value:.1e}" for value in packed.decode().tolist()]
        (11, ['0.0e+00', '-1.0e-06', '3.0e+00'])
    """

    @property
    def name(self) -> str:
        """What `formats.make_format` calls it."""
        return "s2fp8"

    def encode(
        self,
        tensor: Tensor,
        generator: torch.Generator,
        statistics: Statistics | None = None,  # noqa: ARG002 - the protocol's
    ) -> PackedSqueezed:
        """Packs a tensor; see `format.Format.encode`.  Earlier statistics are not used."""
        require_floating(tensor)
        require_generator(generator)
        values = tensor.detach().contiguous()
        if values.numel():
            ends_of(values)
        values = values.float()  # what is zero in it has no logarithm, whatever it was in float64
        logs = values.abs().log2()
        there = logs[values != 0]
        squeeze, shift = 1.0, 0.0
        if there.numel():
            mean, highest = float(there.mean(dtype=torch.float64)), float(there.max())
            squeeze = REACH / (highest - mean) if highest > mean else 1.0
            shift = -squeeze * mean
        squeezed = torch.exp2(squeeze * logs + shift).clamp_(max=2.0**REACH)
        held = torch.copysign(squeezed, values).to(torch.float8_e5m2)
        return PackedSqueezed(held, squeeze, shift, tensor.dtype)

    def settle(
        self, tensor: Tensor, generator: torch.Generator, statistics: Statistics | None = None
    ) -> tuple[Tensor, int, Statistics | None]:
        """What `encode` and `decode` give, and the bytes between them."""
        packed = self.encode(tensor, generator, statistics)
        return packed.decode(), packed.nbytes, None

    def second_moments(self) -> S2FP8:
        """The same: it has no published exception."""
        return self

    def ruins(self, gradient: Tensor, settled: Tensor) -> bool:  # noqa: ARG002 - the protocol's
        """No: it stretches what it stores until it reaches all of it."""
        return False
