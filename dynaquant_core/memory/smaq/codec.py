"""SmaQ: z-scores coded in few bits, with the few values outside of a box in more (IEEE CAL 2021).

Guarantee, for z = (x - mean) / std and the default SmaQ(6, 8): |error| < 2 std / 31 where |z| <= 1 and
< std / 63 where 1 < |z| <= 2, up to roundings to float32 and to the tensor's dtype; beyond 2 the value is
clamped to it.  Rounding is stochastic: each value that is not clamped is right on average to 2^-15 of a gap,
also where decoded values are kept inside of a tensor's own range.
In other widths and walls the bounds are `Levels.bounds`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, final
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from dynaquant_core.config import require, require_choice
from dynaquant_core.errors import StateMismatchError, UnsupportedStateError
from dynaquant_core.memory.smaq import zeros
from dynaquant_core.memory.smaq.chunks import CHUNK, Runs, chunk_count, chunk_sizes
from dynaquant_core.memory.smaq.format import require_floating, require_generator
from dynaquant_core.memory.smaq.levels import Floats, Gaps, Levels, gaps_at
from dynaquant_core.memory.smaq.looks import Look, PlainLook, look_at
from dynaquant_core.memory.smaq.sides import side_of
from dynaquant_core.memory.smaq.statistics import METHODS, Ends, Method, Statistics
from dynaquant_core.quantize.flat import flatten

__all__ = ["PackedCodes", "SmaQ"]

#: Mean and standard deviation, float32 each; as much for an end that levels would go beyond.
STATISTICS_BYTES: Final = 8
END_BYTES: Final = 4

#: Ends that keep nothing in.
OPEN: Final = Ends(-math.inf, math.inf)

#: Logarithms of second moments are clamped twice as far out: a step divides by their root.
LOG_REACH: Final = 2

#: What the clamp may cut off a map's gradient: of its sum, in shares of that of absolute values, and of its
#: energy.  Of inner maps it was 0.04 and 0.4, of logits of ten classes 0.15 and 0.1, of 64 0.37 and 0.55.
MOST_SUM: Final = 0.05
MOST_ENERGY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known of a tensor before it is coded.

    Args:
        look: at what is coded, flat: the tensor, without kept zeros, or its logarithm.
        mask: of those that are not zero; None: none was kept.
        statistics: of that.
        ends: no decoded value is beyond them.
        gaps: those between two levels that the ends cut.
    """

    look: Look
    mask: Tensor | None
    statistics: Statistics
    ends: Ends = OPEN
    gaps: Gaps | None = None


class _Known:
    """Something that a `WeakSet` holds; dataclasses with slots cannot be held before Python 3.11."""

    __slots__ = ("__weakref__",)


@dataclass(frozen=True, eq=False, slots=True)
class PackedCodes(_Known):
    """A tensor as SmaQ stores it.

    Args:
        form: how it was coded.
        shape, dtype, device: of the tensor.
        statistics: mean and standard deviation of what is coded.
        count: how many values are coded.
        mask, inner, outer: uint8 tensors on the device: flags of outliers, codes of inliers and of outliers.
        counts: int16[chunks] on the CPU: outliers of each chunk.
        zeros: uint8 mask of the values that are not zero; None: all values are coded.
        ends: no decoded value is beyond them; infinite where no level is.
    """

    form: SmaQ
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    statistics: Statistics
    count: int
    mask: Tensor
    inner: Tensor
    outer: Tensor
    counts: Tensor
    zeros: Tensor | None
    ends: Ends

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored."""
        stored = [self.mask, self.inner, self.outer, self.counts]
        stored += [] if self.zeros is None else [self.zeros]
        return sum(part.nbytes for part in stored) + header_bytes(self.ends)

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return chunk_count(self.count)

    def decode(self) -> Tensor:
        """See `format.Packed`.

        Raises:
            StateMismatchError: the parts are not of the lengths that `SmaQ.encode` gave them.
        """
        values = self._read(slice(0, self.chunks))
        return zeros.join(values, self.zeros, self.shape.numel()).view(self.shape)

    def decode_chunk(self, index: int) -> Tensor:
        """The coded values of one chunk (16384 of them, the last may be shorter), from its bytes alone.

        Raises:
            ConfigError: there is no such chunk.
            StateMismatchError: as `decode`.
        """
        require(
            0 <= index < self.chunks, f"SmaQ: there is no chunk {index}, expected 0 to {self.chunks - 1}."
        )
        return self._read(slice(index, index + 1))

    def _read(self, wanted: slice) -> Tensor:
        if self.statistics.std == 0:
            size = min(wanted.stop * CHUNK, self.count) - wanted.start * CHUNK
            return constant(self.form, self.statistics, max(size, 0), self.dtype, self.device)
        self._require_whole()
        levels, tables = self.form.levels, tables_of(self.form, self.statistics, self.ends, self.dtype)
        parts = (self.mask, self.inner, self.outer, self.counts)
        side = side_of(self.device)
        values: Tensor = side.read(*parts, levels, tables, self.count, wanted, self.dtype)
        return values

    def _require_whole(self) -> None:
        """Kernels look at no lengths: codes that were cut off would be read beyond their end."""
        if self in WHOLE:
            return
        levels, sizes = self.form.levels, chunk_sizes(self.count)
        counts = self.counts.numpy()
        good = counts.shape == sizes.shape and bool(((counts >= 0) & (counts <= sizes)).all())
        runs = Runs.of(
            self.counts if good else torch.zeros(len(sizes), dtype=torch.int16, device="cpu"), self.count
        )
        expected = {
            "mask": -(-self.count // 8),
            "inner": int(runs.inner[-1]) * levels.inner_width,
            "outer": int(runs.outer[-1]) * levels.outer_width,
        }
        if self.zeros is not None:
            expected["zeros"] = -(-self.shape.numel() // 8)
        found = {name: getattr(self, name).numel() for name in expected}
        if not good or found != expected:
            raise StateMismatchError(
                f"SmaQ: codes of {self.count} values need {len(sizes)} counts of outliers and {expected} "
                f"bytes, found {self.counts.numel()} counts and {found}; they are not what encode gave: "
                f"encode the tensor again."
            )


#: Those whose lengths are what `SmaQ.encode` made them; a copy, or one from a file, is looked at anew.
WHOLE: WeakSet[PackedCodes] = WeakSet()


@final
@dataclass(frozen=True, slots=True)
class SmaQ:
    """The format: widths and walls, where mean and spread come from, and what becomes of zeros.

    A tensor whose values are all equal, or spread by less than 2^-126, is stored as its mean and comes back
    as that.  An empty one comes back empty.

    Args:
        inlier_bits, outlier_bits, box, limit: see `Levels`.
        statistics: ``"exact"``, ``"sample"`` or ``"range"``; see `statistics.measure`.
        sample: values that ``"sample"`` looks at.
        keep_zeros: exact zeros come back as zero where a tensor has no negative values, one zero in 64, or
            blank rows (of 15 values and more side by side in memory); and no value comes back as less than a
            tensor's lowest or more than its highest, so that what is inside the domain of a logarithm or a
            root stays there (ours); False: every value is coded, and levels may go beyond, as published.
        logarithm: codes log2 of values that are not negative: their ratio to the true ones is bounded (ours).

    Raises:
        ConfigError: a setting is of the wrong type or out of range.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> packed = SmaQ().encode(torch.randn(100_000, generator=generator), generator)
        >>> packed.decode().shape, round(400_000 / packed.nbytes, 1)
        (torch.Size([100000]), 4.8)
    """

    inlier_bits: int = 6
    outlier_bits: int = 8
    box: float = 1.0
    limit: float = 2.0
    statistics: Method = "exact"
    sample: int = 1024
    keep_zeros: bool = True
    logarithm: bool = False

    def __post_init__(self) -> None:
        Levels(self.inlier_bits, self.outlier_bits, self.box, self.limit)  # checks the four of them
        require_choice("SmaQ", "statistics", self.statistics, METHODS)
        whole = isinstance(self.sample, int) and not isinstance(self.sample, bool) and self.sample >= 2
        require(whole, f"SmaQ: sample must be a whole number from 2, got {self.sample!r}.")
        for name in ("keep_zeros", "logarithm"):
            require_choice("SmaQ", name, getattr(self, name), (True, False))

    @property
    def name(self) -> str:
        """What `formats.make_format` calls it."""
        return "smaq"

    @property
    def levels(self) -> Levels:
        """Where the levels lie."""
        return levels_of(self.inlier_bits, self.outlier_bits, self.box, self.limit)

    def encode(
        self, tensor: Tensor, generator: torch.Generator, statistics: Statistics | None = None
    ) -> PackedCodes:
        """Packs a tensor; see `format.Format.encode`."""
        found = self._survey(tensor, generator, statistics)
        size, device = found.look.values.numel(), tensor.device
        if found.statistics.std == 0:
            nothing = torch.empty(0, dtype=torch.uint8, device=device)
            parts = (nothing, nothing, nothing, torch.empty(0, dtype=torch.int16, device="cpu"))
        else:
            parts = found.look.encode(self.levels, found.statistics, draw_key(generator), found.gaps)
        about = (tensor.shape, tensor.dtype, device, found.statistics, size)
        packed = PackedCodes(self, *about, *parts, found.mask, found.ends)
        WHOLE.add(packed)
        return packed

    def settle(
        self, tensor: Tensor, generator: torch.Generator, statistics: Statistics | None = None
    ) -> tuple[Tensor, int, Statistics | None]:
        """What `encode` and `decode` give, and the bytes between them; see `format.Format.settle`."""
        found = self._survey(tensor, generator, statistics)
        size, stored = found.look.values.numel(), header_bytes(found.ends)
        stored += 0 if found.mask is None else found.mask.nbytes
        if found.statistics.std == 0:
            values = constant(self, found.statistics, size, tensor.dtype, tensor.device)
        else:
            tables = tables_of(self, found.statistics, found.ends, tensor.dtype)
            given = self.levels, found.statistics, draw_key(generator), tables, tensor.dtype
            values, outliers = found.look.settle(*given, found.gaps)
            stored += self._bytes(size, outliers)
        return zeros.join(values, found.mask, tensor.numel()).view(tensor.shape), stored, found.statistics

    def second_moments(self) -> SmaQ:
        """Codes logarithms, clamped at twice the limit; see `docs/smaq.md` for why."""
        if not self.keep_zeros:
            return self
        return replace(self, logarithm=True, limit=min(self.limit * LOG_REACH, 64.0))

    def ruins(self, gradient: Tensor, settled: Tensor) -> bool:
        """Whether the clamp has cut off a real share of a map's gradient, or on one side alone.

        A classifier's logits get softmax less one at the label, many deviations out: of many words nothing of
        it was left, and of ten classes more of it than of the rest, which balances it.  Models diverged.  As
        published (``keep_zeros=False``) that is part of the format.
        """
        if not self.keep_zeros:
            return False
        lost, whole = settled - gradient, float(torch.linalg.vector_norm(gradient, 1, dtype=torch.float64))
        if abs(float(lost.sum(dtype=torch.float64))) > MOST_SUM * whole:
            return True
        lost_energy, energy = (
            float(torch.linalg.vector_norm(one, dtype=torch.float64)) ** 2 for one in (lost, gradient)
        )
        return lost_energy > MOST_ENERGY * energy

    def _survey(self, tensor: Tensor, generator: torch.Generator, given: Statistics | None) -> Survey:
        require_floating(tensor)
        require_generator(generator)
        flat = flatten(tensor)
        if not flat.numel():
            return Survey(PlainLook(flat, Ends(0.0, 0.0)), None, Statistics(0.0, 0.0))
        fresh = given is None and self.statistics == "exact" and not self.logarithm
        look, mask = look_at(flat, self.levels if fresh else None), None
        if self.keep_zeros or self.logarithm:
            look, mask = look.without_zeros()
        if self.logarithm and look.values.numel():
            look = self._logarithms(look)
        ends = look.ends
        if ends.low == ends.high or not look.values.numel():
            return Survey(look, mask, Statistics.of(ends.low, 0.0))
        if given is None or given.std == 0:
            given = look.statistics(self.statistics, self.sample, generator)
        if not self.keep_zeros or self.logarithm:
            return Survey(look, mask, given)
        ends = within_reach(ends, self.levels, given)
        gaps = None if ends == OPEN else gaps_at(self.levels, given.mean, given.std, ends.low, ends.high)
        return Survey(look, mask, given, ends, gaps)

    def _logarithms(self, look: Look) -> Look:
        if look.ends.low < 0:
            raise UnsupportedStateError(
                f"SmaQ: logarithm=True takes values from 0, found {look.ends.low}; "
                "code the tensor without it."
            )
        return look_at(look.values.float().log2())

    def _bytes(self, size: int, outliers: int) -> int:
        """Bytes of codes, flags and counts; chunks' fillings at their mean, which is under 0.1%."""
        inner, outer = self.levels.inner_width, self.levels.outer_width
        inside, outside = (-(-codes // 8) for codes in (size - outliers, outliers))
        return -(-size // 8) + inside * inner + outside * outer + 2 * chunk_count(size)


#: Asked for with every tensor.
levels_of = lru_cache(maxsize=64)(Levels)


def header_bytes(ends: Ends) -> int:
    """Bytes of the statistics."""
    return STATISTICS_BYTES + END_BYTES * sum(math.isfinite(end) for end in (ends.low, ends.high))


def within_reach(ends: Ends, levels: Levels, statistics: Statistics) -> Ends:
    """The ends that levels go beyond; infinite in place of the others."""
    reach = levels.limit * statistics.std
    low = ends.low if ends.low > statistics.mean - reach else -math.inf
    return Ends(low, ends.high if ends.high < statistics.mean + reach else math.inf)


def draw_key(generator: torch.Generator) -> int:
    """One number from the generator; all draws of a tensor follow from it."""
    return int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))


def tables_of(form: SmaQ, statistics: Statistics, ends: Ends, dtype: torch.dtype) -> tuple[Floats, Floats]:
    """What codes stand for, float32, finite in the tensor's dtype."""
    tables = form.levels.tables(statistics.mean, statistics.std)
    largest = min(torch.finfo(dtype).max, float(np.finfo(np.float32).max))
    low, high = max(ends.low, -largest), min(ends.high, largest)
    if form.logarithm:
        tables = tuple(np.exp2(table.astype(np.float64)) for table in tables)  # type: ignore[assignment]
        low = math.ldexp(1.0, -126) if dtype != torch.float16 else math.ldexp(1.0, -24)
    return tuple(table.clip(low, high).astype(np.float32) for table in tables)  # type: ignore[return-value]


def constant(
    form: SmaQ, statistics: Statistics, size: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """So many values, all of them the mean."""
    largest = min(torch.finfo(dtype).max, float(np.finfo(np.float32).max))
    value = 2.0**statistics.mean if form.logarithm else statistics.mean
    value = min(max(value, -largest), largest)  # the logarithm of the largest value is rounded up
    return torch.full((size,), value, dtype=torch.float32, device=device).to(dtype)
