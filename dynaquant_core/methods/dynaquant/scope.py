"""One codebook for each tensor, or one for all (ours; neither serves every network).

Per tensor, every tensor keeps the same relative error.  One codebook for all spends its centres where the
weights are large and codes the small tensors with few levels: fewer bytes, and the better choice where errors
in large weights matter most.  `equal_error_bytes` compares the two at equal error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dynaquant_core.methods.dynaquant.counts import SurvivorCounts

__all__ = ["equal_error_bytes", "merge"]


def merge(parts: Mapping[str, SurvivorCounts]) -> SurvivorCounts:
    """Survivors of several tensors together; sketches merge by adding counts (paper A.1)."""
    values = np.concatenate([part.values for part in parts.values()])
    counts = np.concatenate([part.counts for part in parts.values()])
    edges = np.concatenate([part.edges for part in parts.values()])
    _, first, where = np.unique(edges[:, 0], return_index=True, return_inverse=True)
    total = np.bincount(where, counts, first.size).astype(np.int64)
    # About the first of each bucket: where all are the same value, it stays that to the last bit.
    beyond = np.bincount(where, counts * (values - values[first][where]), first.size)
    means = values[first] + beyond / np.maximum(total, 1)
    energy = sum(part.energy for part in parts.values())
    inside = sum(part.inside for part in parts.values())
    between = float(np.dot(counts, (values - means[where]) ** 2))
    return SurvivorCounts(means, edges[first], total, energy, 0.0, inside + between)


def equal_error_bytes(nbytes: float, error: float, weights: int) -> float:
    """What ``nbytes`` would be worth at error 1: half a bit a weight for every factor of 4 in squared error.

    Args:
        nbytes: bytes of all tensors together.
        error: their weighted sum of squared errors, in any unit that both alternatives share.
        weights: number of weights coded.

    Example:
        >>> equal_error_bytes(1000.0, 4.0, 800) - equal_error_bytes(1000.0, 1.0, 800)
        100.0
    """
    return nbytes + weights / 16.0 * math.log2(max(error, 1e-300))
