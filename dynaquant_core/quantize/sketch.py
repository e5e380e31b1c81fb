"""A mergeable sketch of a distribution: counts in buckets of relative width (paper sec. 4.2, A.1).

Guarantee: every quantile is within the buckets' `relative_error` of the exact one, whatever the distribution
and however many sketches were merged, because merging only adds counts.  Memory: 8 bytes a bucket, 0.26 MB
for `BitBuckets(6)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.borrowed import borrowed
from dynaquant_core.errors import ConfigError
from dynaquant_core.quantize.buckets import Buckets
from dynaquant_core.quantize.flat import flatten
from dynaquant_core.quantize.seam import histogram

__all__ = ["Moments", "Sketch", "SparseSketch"]

_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """Counts of values by bucket.

    Args:
        buckets: the bucket scheme.
        counts: int64[size], one count a bucket.

    Example:
        >>> import torch
        >>> from dynaquant_core.quantize.buckets import BitBuckets
        >>> sketch = Sketch.of(torch.linspace(-1, 1, 1001), BitBuckets(6))
        >>> abs(sketch.quantile(0.75) - 0.5) <= 0.5 / 129
        True
    """

    buckets: Buckets
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, tensor: Tensor, buckets: Buckets) -> Sketch:
        """Sketches a floating tensor of any shape, on its own device; raises as `seam.histogram`."""
        return cls(buckets, histogram(tensor, buckets))

    @classmethod
    def empty(cls, buckets: Buckets) -> Sketch:
        """The sketch of no values: what merging starts from."""
        return cls(buckets, np.zeros(buckets.size, dtype=np.int64))

    def __add__(self, other: Sketch) -> Sketch:
        """The sketch of both sets of values together; raises ConfigError where the buckets differ."""
        if self.buckets != other.buckets:
            raise ConfigError(
                f"Sketch: only sketches over the same buckets merge, got {self.buckets} and {other.buckets}."
            )
        return Sketch(self.buckets, self.counts + other.counts)

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    def quantile(self, share: float) -> float:
        """The value below which ``share`` of the values lie, within the buckets' relative error.

        Args:
            share: in [0, 1]; the exact quantile meant is the value of rank floor(share * (total - 1)),
                NumPy's ``method="lower"``.

        Raises:
            ConfigError: the share is out of range, or there are no values.
        """
        total = self.total
        if not 0.0 <= share <= 1.0 or total == 0:
            raise ConfigError(f"Sketch: no quantile {share!r} of {total} values; expected a share in [0, 1].")
        rank = int(share * (total - 1))
        index = int(np.searchsorted(np.cumsum(self.counts), rank, side="right"))
        return float(self.buckets.values[index])

    def magnitude(self) -> Sketch:
        """The sketch of the values' magnitudes, folded from a signed one."""
        if not self.buckets.signed:
            return self
        zero = self.buckets.magnitudes - 1
        counts = self.counts[zero:].copy()
        counts[1:] += self.counts[zero - 1 :: -1]
        return Sketch(self.buckets.unsigned(), counts)


class Moments(NamedTuple):
    """Of the values in each filled bucket of a sketch.

    Args:
        means: float64[r], ascending.
        variances: float64[r], mean squared distance from the mean.
        deviations: float64[r], mean distance from it.
    """

    means: NDArray[np.float64]
    variances: NDArray[np.float64]
    deviations: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SparseSketch:
    """A sketch to keep: its filled buckets, two thousand of the 33 thousand of `BitBuckets(6)`, about.

    Args:
        buckets: the bucket scheme.
        rows: int64[r], ascending, the buckets that hold values.
        counts: int64[r], values in each.

    Example:
        >>> import torch
        >>> from dynaquant_core.quantize.buckets import BitBuckets
        >>> sparse = SparseSketch.of(Sketch.of(torch.tensor([1.0, 1.0, 2.0]), BitBuckets(6)))
        >>> sparse.counts.tolist(), sparse.dense().total
        ([2, 1], 3)
    """

    buckets: Buckets
    rows: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, sketch: Sketch) -> SparseSketch:
        """The filled buckets of a sketch."""
        rows = np.flatnonzero(sketch.counts)
        return cls(sketch.buckets, rows, sketch.counts[rows])

    def dense(self) -> Sketch:
        """The whole sketch."""
        return Sketch(self.buckets, self.spread(self.counts))

    def moments(self, part: Tensor) -> Moments:
        """What stands for the values of each filled bucket, their mean, and how they lie about it.

        The middle of a bucket is off by up to its relative error, all one way where values are equal or of
        few bits: of bfloat16 a bucket of `BitBuckets(6)` holds two, its lower edge and about its middle.

        Args:
            part: some of the sketched values, or all, any shape and device; the same ones give the same bits.

        Returns:
            `Moments`.  Where ``part`` has too little in a bucket, the bucket's own value, and distances of
            values that fill it evenly; for zero's, zero.

        Example:
            >>> from dynaquant_core.quantize.buckets import BitBuckets
            >>> ones = torch.ones(8)
            >>> found = SparseSketch.of(Sketch.of(ones, BitBuckets(6))).moments(ones)
            >>> found.means.tolist(), found.variances.tolist()
            ([1.0], [0.0])
        """
        values = borrowed(flatten(part).to(torch.float32).cpu())
        place = np.zeros(self.buckets.size, dtype=np.intp)
        place[self.rows] = np.arange(self.rows.size)
        where = place[self.buckets.bucket_of(values)]
        counts = np.bincount(where, minlength=self.rows.size)
        own, edges = self.buckets.values[self.rows], self.buckets.edges
        widths = edges[self.rows + 1] - edges[self.rows]
        sums = np.bincount(where, values, self.rows.size)
        means = np.divide(sums, counts, out=own.copy(), where=(counts > 0) & (own != 0))
        away = np.abs(values - means[where])
        known = counts >= np.minimum(self.counts, 2)
        squares, sums = (np.bincount(where, each, self.rows.size) for each in (away**2, away))
        variances = np.divide(squares, counts, out=widths**2 / 12, where=known)
        deviations = np.divide(sums, counts, out=widths / 4, where=known)
        # Equal values have none; their sum's rounding is less than any difference of float32 makes.
        none = (own == 0) | (variances < 2.0**-70 * means**2)
        return Moments(means, np.where(none, 0.0, variances), np.where(none, 0.0, deviations))

    def spread(self, values: NDArray[_Number]) -> NDArray[_Number]:
        """Values of the filled buckets, [r], as values of all of them, [size]; zero elsewhere."""
        wide = np.zeros(self.buckets.size, dtype=values.dtype)
        wide[self.rows] = values
        return wide
