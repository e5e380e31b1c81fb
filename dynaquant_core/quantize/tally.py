"""What a cut leaves of a tensor, as counts: enough to fit centres and to predict the size of the codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Tally"]


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """Joint counts of one tensor's weights by what becomes of them and by their code in the base.

    Args:
        rows: int64[r], indices of the buckets that hold survivors, ascending (so ascending by value).
        counts: signed integers[r, base levels], survivors: weights neither pruned nor protected.
        pruned: int64[base levels].
        protected: int64[base levels].
    """

    rows: NDArray[np.int64]
    counts: NDArray[np.integer[Any]]
    pruned: NDArray[np.int64]
    protected: NDArray[np.int64]

    @property
    def survivors(self) -> NDArray[np.int64]:
        """int64[r]: survivors of each bucket, whatever their base code."""
        total: NDArray[np.int64] = self.counts.sum(axis=1, dtype=np.int64)
        return total

    @property
    def total(self) -> int:
        """Number of weights."""
        return int(self.counts.sum(dtype=np.int64) + self.pruned.sum() + self.protected.sum())

    def lean(self) -> Tally:
        """The same to be kept, in the narrowest counts that hold it.

        All of it is copied: a row of a table would keep the whole table.
        """
        most = int(self.counts.max(initial=0))
        counts = self.counts.astype(np.result_type(np.int16, np.min_scalar_type(-most - 1)))
        return Tally(self.rows, counts, self.pruned.copy(), self.protected.copy())

    def by_level(self, lookup: NDArray[np.uint8], levels: int) -> NDArray[np.int64]:
        """Joint counts of the codes that ``lookup`` would assign.

        Args:
            lookup: uint8[size], level of each bucket (`codebook.lookup`).
            levels: number of levels, the two that are no centres included.

        Returns:
            int64[levels, base levels]: exactly the joint histogram of `seam.assign`'s codes and the base's.

        Example:
            >>> one = np.ones(1, dtype=np.int64)
            >>> tally = Tally(np.array([4, 7]), np.array([[5], [6]]), 2 * one, 3 * one)
            >>> tally.by_level(np.arange(8, dtype=np.uint8) // 2, 4)[:, 0].tolist()
            [2, 3, 5, 6]
        """
        joint = np.zeros((levels, self.pruned.size), dtype=np.int64)
        level = lookup[self.rows]
        order = np.argsort(level, kind="stable")
        found, first = np.unique(level[order], return_index=True)
        if found.size:
            joint[found] = np.add.reduceat(self.counts[order], first, axis=0, dtype=np.int64)
        joint[0] += self.pruned
        joint[1] += self.protected
        return joint
