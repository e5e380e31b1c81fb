"""A cut written down as one table that a kernel can follow.

The rules on magnitude act on whole buckets, so they are folded into the table; the rules on sensitivity need
the gradient and are applied weight by weight.  Protection wins over pruning (paper sec. 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.quantize.buckets import Buckets
from dynaquant_core.quantize.cut import Cut

__all__ = ["Rules"]


@dataclass(frozen=True, slots=True)
class Rules:
    """A cut as kernels follow it.

    Args:
        by_bucket: [buckets], row (or level) of each bucket, the rules on magnitude applied.
        bucket: int64[cells], bucket of each cell.
        rows: number of rows of a joint count; 0 for code assignment.
        pruned: row of the pruned; that of the protected follows.
        prune, protect: thresholds on sensitivity (-1 and inf: off).
    """

    by_bucket: NDArray[Any]
    bucket: NDArray[np.int64]
    rows: int
    pruned: int
    prune: float
    protect: float

    @classmethod
    def of(cls, cut: Cut, buckets: Buckets, survivors: NDArray[Any], *, pruned: int, rows: int = 0) -> Rules:
        """Rules that send the survivors of bucket b to row (level) ``survivors[b]``."""
        by_bucket = np.where(cut.pruned(buckets), pruned, survivors)
        by_bucket = np.where(cut.protected(buckets), pruned + 1, by_bucket)
        prune = cut.prune if cut.prune_metric == "sensitivity" else -1.0
        return cls(by_bucket, buckets.cells.bucket, rows, pruned, prune, cut.protect_sensitivity)

    def table(self, dtype: type[np.integer[Any]]) -> NDArray[Any]:
        """[cells], row (or level) of each cell; a narrow ``dtype`` is most of a small tensor's speed."""
        return self.by_bucket.astype(dtype)[self.bucket]
