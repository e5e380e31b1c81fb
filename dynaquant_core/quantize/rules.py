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
        table: [cells], row (or level) of each cell, the rules on magnitude applied.
        rows: number of rows of a joint count; 0 for code assignment.
        pruned: row of the pruned; that of the protected follows.
        prune, protect: thresholds on sensitivity (-1 and inf: off).
    """

    table: NDArray[Any]
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
        return cls(by_bucket[buckets.cells.bucket], rows, pruned, prune, cut.protect_sensitivity)
