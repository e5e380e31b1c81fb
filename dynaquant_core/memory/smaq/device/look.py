"""`looks.Look` in one pass over a tensor on a device, and one answer that the host waits for.

Of a tensor with a few zeros it waits for another, whether they lie side by side (`zeros.are_kept`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from dynaquant_core.device_jit import on
from dynaquant_core.memory.smaq.chunks import CHUNK, chunk_count
from dynaquant_core.memory.smaq.cpu_path import Tables
from dynaquant_core.memory.smaq.device import path, zeros
from dynaquant_core.memory.smaq.device import survey_kernels as kernels
from dynaquant_core.memory.smaq.device.flag_kernels import TILE
from dynaquant_core.memory.smaq.device.path import ABOUT, FOUND, Draft
from dynaquant_core.memory.smaq.levels import Gaps, Levels
from dynaquant_core.memory.smaq.statistics import (
    Ends,
    Method,
    Statistics,
    ends_from,
    measure,
    spread_of_range,
)
from dynaquant_core.memory.smaq.zeros import are_kept

__all__ = ["DeviceLook"]

#: Sums round as those of `code_kernels.classify_first` do.
SURVEY: Final[dict[str, Any]] = {"CHUNK": CHUNK, "TILE": TILE, "num_warps": 8, "enable_fp_fusion": False}


@dataclass(frozen=True, slots=True)
class DeviceLook:
    """What one pass found.

    Args:
        values: floating[n].
        counts: float64[chunks] on the device: values of each chunk that are not zero.
        zeros: how many are.
        others: ends of those that are not.
        mean, squares: theirs; of distances from the mean.
        draft: what is coded of them already.
    """

    values: Tensor
    counts: Tensor
    zeros: int
    others: Ends
    mean: float
    squares: float
    draft: Draft | None = None

    @classmethod
    def of(cls, flat: Tensor, levels: Levels | None = None) -> DeviceLook:
        """Looks at a tensor of at least one value; arguments and raises as `looks.look_at` says."""
        size, chunks, device = flat.numel(), chunk_count(flat.numel()), flat.device
        partial = torch.empty((5, chunks), dtype=torch.float64, device=device)
        # All that the host waits for: five float64, two float32, and the chunks' counts.
        answer = torch.empty(FOUND + ABOUT + 2 * chunks, dtype=torch.uint8, device=device)
        found = answer[:FOUND].view(torch.float64)
        with on(device):
            kernels.survey[(chunks,)](flat, partial, size, chunks, **SURVEY)
            if levels is None:
                kernels.combine[(1,)](partial, found, chunks, num_warps=8, enable_fp_fusion=False)
                heard, draft = answer[:FOUND].cpu(), None
            else:
                heard, draft = path.drafted(flat, levels, partial, answer)
        count, low, high, mean, squares = heard[:FOUND].view(torch.float64).tolist()
        others = ends_from(low, high, flat) if count else Ends(0.0, 0.0)
        return cls(flat, partial[0], size - int(count), others, mean, squares, draft)

    @property
    def ends(self) -> Ends:
        """See `Look.ends`."""
        if not self.zeros:
            return self.others
        return Ends(min(self.others.low, 0.0), max(self.others.high, 0.0))

    def without_zeros(self) -> tuple[DeviceLook, Tensor | None]:
        """See `Look.without_zeros`."""
        size = self.values.numel()
        if not are_kept(self.values, self.zeros, self.ends):
            return self, None
        kept, mask = zeros.split(self.values, self.counts, size - self.zeros)
        return DeviceLook(kept, self.counts, 0, self.others, self.mean, self.squares), mask

    def statistics(self, method: Method, sample: int, generator: torch.Generator) -> Statistics:
        """See `Look.statistics`."""
        size, ends = self.values.numel(), self.ends
        if method == "sample" and sample < size:
            return measure(self.values, ends, method, sample, generator)
        count = size - self.zeros
        mean = self.mean * count / size
        squares = self.squares + count * (self.mean - mean) ** 2 + self.zeros * mean**2
        if method == "range":
            return Statistics.of(mean, spread_of_range(ends.high - ends.low, size))
        return Statistics.of(mean, math.sqrt(max(squares / size, 0.0)))

    def encode(
        self, levels: Levels, statistics: Statistics, key: int, gaps: Gaps | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `Look.encode`."""
        return path.encode(self.values, levels, statistics, key, gaps, self.draft)

    def settle(
        self,
        levels: Levels,
        statistics: Statistics,
        key: int,
        tables: Tables,
        dtype: torch.dtype,
        gaps: Gaps | None,
    ) -> tuple[Tensor, int]:
        """See `Look.settle`."""
        return path.settle(self.values, levels, statistics, key, tables, dtype, gaps, self.draft)
