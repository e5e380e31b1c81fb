"""From centres to the two tables of code look-up: level of each bucket, value of each level.

Levels: 0 pruned, 1 protected, 2 and up the centres by ascending value, so that a change of their number
shifts as little as possible (paper sec. 6).  A boundary between two centres is snapped to a bucket: a bucket
goes where its own value is nearest (ours; at most 0.2% more squared error with 64 centres, 0.05% with 16).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.config import MAX_BINS
from dynaquant_core.errors import ConfigError
from dynaquant_core.quantize.buckets import Buckets

__all__ = ["FIRST_CENTRE", "lookup", "table"]

#: Level of the lowest centre.
FIRST_CENTRE = 2


def lookup(
    centres: NDArray[Any], buckets: Buckets, values: NDArray[np.float64] | None = None
) -> NDArray[np.uint8]:
    """The level of each bucket: that of the centre nearest to its value, the lower one on a tie.

    Args:
        centres: floating[k], ascending, k at most 64; none: every bucket is level 0.
        buckets: signed buckets.
        values: float64[size], ascending, what stands for each bucket; None: the buckets' own values.

    Returns:
        uint8[size], for `seam.assign`.

    Raises:
        ConfigError: the centres are not ascending, not finite or too many.

    Example:
        >>> from dynaquant_core.quantize.buckets import BitBuckets
        >>> buckets = BitBuckets(6)
        >>> levels = lookup(np.array([-1.0, 0.0, 1.0]), buckets)
        >>> levels[buckets.bucket_of(np.array([-0.7, 0.2, 9.0]))].tolist()
        [2, 3, 4]
    """
    wide = checked(centres).astype(np.float64)
    if wide.size == 0:
        return np.zeros(buckets.size, dtype=np.uint8)
    ends = np.searchsorted(
        buckets.values if values is None else values, (wide[1:] + wide[:-1]) / 2, side="right"
    )
    widths = np.diff(np.concatenate(([0], ends, [buckets.size])))
    return np.repeat(np.arange(FIRST_CENTRE, FIRST_CENTRE + wide.size, dtype=np.uint8), widths)


def table(centres: NDArray[Any]) -> NDArray[np.float32]:
    """The value of each level, for `seam.gather`; the protected level's entry (0) is never read.

    Args:
        centres: floating[k], ascending.

    Returns:
        float32[2 + k].

    Raises:
        ConfigError: as `lookup`.

    Example:
        >>> table(np.array([-0.5, 0.5])).tolist()
        [0.0, 0.0, -0.5, 0.5]
    """
    return np.concatenate((np.zeros(FIRST_CENTRE), checked(centres))).astype(np.float32)


def checked(centres: NDArray[Any]) -> NDArray[Any]:
    """The centres, which must be a finite ascending run of at most 64."""
    good = centres.ndim == 1 and centres.size <= MAX_BINS and bool(np.isfinite(centres).all())
    if not good or bool((centres[1:] < centres[:-1]).any()):
        raise ConfigError(
            f"codebook: expected at most {MAX_BINS} finite centres in ascending order, got {centres!r}."
        )
    return centres
