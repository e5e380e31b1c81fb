"""What is looked at in a tensor before it is coded: its ends, its zeros, and how its values spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from dynaquant_core import device_jit
from dynaquant_core.memory.smaq import zeros
from dynaquant_core.memory.smaq.cpu_path import Tables
from dynaquant_core.memory.smaq.levels import Gaps, Levels
from dynaquant_core.memory.smaq.sides import side_of
from dynaquant_core.memory.smaq.statistics import Ends, Method, Statistics, ends_of, measure

__all__ = ["Look", "PlainLook", "look_at"]

#: Flags of outliers, inliers, outliers, and how many there are of those in each chunk.
Parts: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


class Look(Protocol):
    """A flat floating tensor that was looked at; none of its values is NaN or infinite."""

    @property
    def values(self) -> Tensor:
        """The tensor."""
        ...

    @property
    def ends(self) -> Ends:
        """Its lowest and highest value; zeros where it is empty."""
        ...

    def without_zeros(self) -> tuple[Look, Tensor | None]:
        """(what is coded, mask of those that are not zero); itself and None where none is kept (`zeros`)."""
        ...

    def statistics(self, method: Method, sample: int, generator: torch.Generator) -> Statistics:
        """See `statistics.measure`."""
        ...

    def encode(self, levels: Levels, statistics: Statistics, key: int, gaps: Gaps | None) -> Parts:
        """See `cpu_path.encode`."""
        ...

    def settle(
        self,
        levels: Levels,
        statistics: Statistics,
        key: int,
        tables: Tables,
        dtype: torch.dtype,
        gaps: Gaps | None,
    ) -> tuple[Tensor, int]:
        """See `cpu_path.settle`."""
        ...


@dataclass(frozen=True, slots=True)
class PlainLook:
    """By operations of torch and kernels of the CPU, each when it is asked for."""

    values: Tensor
    ends: Ends

    def without_zeros(self) -> tuple[PlainLook, Tensor | None]:
        """See `Look.without_zeros`."""
        values, mask = zeros.split(self.values, self.ends)
        if mask is None:
            return self, None
        return PlainLook(values, ends_of(values) if values.numel() else Ends(0.0, 0.0)), mask

    def statistics(self, method: Method, sample: int, generator: torch.Generator) -> Statistics:
        """See `Look.statistics`."""
        return measure(self.values, self.ends, method, sample, generator)

    def encode(self, levels: Levels, statistics: Statistics, key: int, gaps: Gaps | None) -> Parts:
        """See `Look.encode`."""
        parts: Parts = side_of(self.values.device).encode(self.values, levels, statistics, key, gaps)
        return parts

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
        side = side_of(self.values.device)
        found: tuple[Tensor, int] = side.settle(self.values, levels, statistics, key, tables, dtype, gaps)
        return found


def look_at(flat: Tensor, levels: Levels | None = None) -> Look:
    """Looks at a flat floating tensor of at least one value.

    Args:
        flat: the tensor.
        levels: with which it will be coded, by its exact statistics, as a rule; a device begins with that.

    Raises:
        UnsupportedStateError: a value is NaN, infinite, or beyond float32.

    Example:
        >>> look, mask = look_at(torch.tensor([0.0, 2.0, 3.0])).without_zeros()
        >>> look.ends, mask.tolist()
        (Ends(low=2.0, high=3.0), [6])
    """
    if flat.dtype != torch.float64 and device_jit.compiles(flat.device):
        from dynaquant_core.memory.smaq.device.look import DeviceLook

        return DeviceLook.of(flat, levels)
    return PlainLook(flat, ends_of(flat))
