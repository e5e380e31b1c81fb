"""Where the codes of several tensors, laid end to end, lie in the packed bytes.

Tensors of equal thresholds that follow each other are one run: they share words, so a bucket of many small
tensors wastes nothing.  Every rank lays out alike, from the sizes and thresholds alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from dynaquant_core.comm.two_bit import codes
from dynaquant_core.comm.two_bit.settings import Limits

__all__ = ["Layout", "Run"]


@final
@dataclass(frozen=True, slots=True)
class Run:
    """Elements ``start`` to ``stop`` of a flat vector, encoded with one pair of thresholds."""

    start: int
    stop: int
    limits: Limits

    @property
    def count(self) -> int:
        """Elements."""
        return self.stop - self.start


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Consecutive runs that cover a flat vector of ``count`` elements.

    Args:
        runs: from 0 to ``count``, without gaps.

    Example:
        >>> layout = Layout.of([(20, (0.5, 0.5)), (5, (0.5, 0.5)), (16, (0.1, 0.1))])
        >>> [(run.start, run.stop) for run in layout.runs], layout.bytes
        ([(0, 25), (25, 41)], 12)
        >>> [(part.count, part.bytes) for part in layout.cut(2)]
        [(16, 4), (25, 8)]
    """

    runs: tuple[Run, ...]

    @classmethod
    def of(cls, tensors: Iterable[tuple[int, Limits]]) -> Layout:
        """The layout of tensors given as (elements, thresholds), in their order."""
        runs: list[Run] = []
        at = 0
        for count, limits in tensors:
            begin = at
            if runs and runs[-1].limits == limits:
                begin = runs.pop().start
            at += count
            if at > begin:
                runs.append(Run(begin, at, limits))
        return cls(tuple(runs))

    @property
    def count(self) -> int:
        """Elements of the vector."""
        return self.runs[-1].stop if self.runs else 0

    @property
    def bytes(self) -> int:
        """Bytes that its codes take."""
        return sum(codes.packed_bytes(run.count) for run in self.runs)

    def encode(self, residual: Tensor, gradient: Tensor) -> Tensor:
        """`codes.encode` run by run: uint8[bytes]."""
        packed = [
            codes.encode(residual[run.start : run.stop], gradient[run.start : run.stop], *run.limits)
            for run in self.runs
        ]
        if len(packed) == 1:
            return packed[0]
        return torch.cat(packed) if packed else torch.empty(0, dtype=torch.uint8, device=residual.device)

    def decode_sum(self, gathered: Tensor, divisor: float) -> Tensor:
        """`codes.decode_sum` run by run: float32[count] of uint8[senders, bytes]."""
        found, at = [], 0
        for run in self.runs:
            size = codes.packed_bytes(run.count)
            part = gathered[:, at : at + size]
            found.append(codes.decode_sum(part, run.count, *run.limits, divisor))
            at += size
        if len(found) == 1:
            return found[0]
        return torch.cat(found) if found else torch.empty(0, dtype=torch.float32, device=gathered.device)

    def cut(self, parts: int) -> list[Layout]:
        """Splits the vector into consecutive parts of about equal bytes, between words; some may be empty."""
        words = self.bytes // 4
        edges = [words * part // parts * 4 for part in range(parts + 1)]
        return [self._between(low, high) for low, high in itertools.pairwise(edges)]

    def _between(self, low: int, high: int) -> Layout:
        """The elements whose codes lie in bytes ``low`` to ``high``, whole words."""
        pieces, at = [], 0
        for run in self.runs:
            size = codes.packed_bytes(run.count)
            begin, end = max(low - at, 0), min(high - at, size)
            if begin < end:
                first, last = begin * codes.IN_BYTE, min(end * codes.IN_BYTE, run.count)
                pieces.append((last - first, run.limits))
            at += size
        return Layout.of(pieces)
