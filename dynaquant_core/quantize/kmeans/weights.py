"""How much each bucket counts in K-means (paper sec. A.2)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.errors import ConfigError

__all__ = ["bucket_weights"]


def bucket_weights(
    values: NDArray[np.float64],
    counts: NDArray[np.int64],
    sigma: float,
    *,
    normalise: Literal["max", "sum"] = "max",
) -> NDArray[np.float64]:
    """Mixes how many weights a bucket holds with how large they are (paper A.2).

    W = sigma * count / norm(count) + (1 - sigma) * |x| / norm(|x|), so the COUNT weighs sigma.

    Args:
        values: float64[n], bucket values.
        counts: int64[n]; a bucket without values weighs nothing.
        sigma: in [0, 1]; the paper's is 0.2; 1 is plain K-means, for which Proposition 4.1 holds.
        normalise: each term divided by its maximum, or by its sum (the paper leaves it open).

    Returns:
        float64[n], not negative; not all zero unless all counts are.

    Raises:
        ConfigError: sigma is out of range.

    Example:
        >>> bucket_weights(np.array([0.5, 1.0]), np.array([8, 2]), 0.2).round(3).tolist()
        [0.6, 0.85]
    """
    if not 0.0 <= sigma <= 1.0:
        raise ConfigError(f"bucket_weights: sigma must be in [0, 1], got {sigma!r}.")
    used = counts > 0
    sizes = np.where(used, np.abs(values), 0.0)
    if sigma < 1.0 and not sizes.any():
        sigma = 1.0  # only zeros: size cannot tell buckets apart
    mixed: NDArray[np.float64] = sigma * shares(counts, normalise) + (1.0 - sigma) * shares(sizes, normalise)
    return np.where(used, mixed, 0.0)


def shares(terms: NDArray[np.int64] | NDArray[np.float64], normalise: str) -> NDArray[np.float64]:
    """Terms divided by their maximum or sum; zeros where all are zero."""
    whole = float(terms.sum() if normalise == "sum" else terms.max(initial=0))
    return terms.astype(np.float64) / whole if whole > 0.0 else np.zeros(terms.size)
