"""Codebooks: a fresh fit, the base's kept frozen, or one shared by all tensors (paper sec. 4.3, A.2; ours).

Refitting moves boundaries a little at every checkpoint, and weights that did not move change their code.  A
codebook of the base that is still nearly as good is therefore kept: it costs no bytes, and codes of unmoved
weights stay.  No tensor is quantised worse than `ERROR_CAP` allows, whatever its neighbours, its tails or how
close together its values lie: what no codebook serves is kept in words, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.config import MAX_BINS, DynaQuantOptions
from dynaquant_core.methods.dynaquant.counts import SurvivorCounts
from dynaquant_core.quantize.kmeans import exact, lloyd
from dynaquant_core.quantize.kmeans.polish import polish
from dynaquant_core.quantize.kmeans.weights import bucket_weights

__all__ = [
    "ERROR_CAP",
    "WORDS",
    "Book",
    "Keep",
    "choose_book",
    "fit",
    "fresh_book",
    "keep_or_fit",
    "within_cap",
]

#: Largest RMS error of a tensor against its spread about its mean, times its bins: 2.2 times what an optimal
#: codebook of as many centres leaves of normal data.  A fit that breaks it is repeated by count alone, then
#: with more bins.  Where the most break it, values lie too close together for the sketch's buckets, or their
#: tails are too long for codes that are drawn, and the tensor is kept in words.
ERROR_CAP = 3.5

#: Most bins of a point inside the cube.
CUBE_BINS = 32

Centres = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Book:
    """The codebook of one tensor.

    Args:
        centres: float32[k], ascending.
        source: "own" (stored with this tensor), "base" (as in the base checkpoint), "shared"; "words": there
            is none, and the tensor is kept bit for bit.
        loss: sum of squared distances of the survivors.
    """

    centres: Centres
    source: Literal["own", "base", "shared", "words"]
    loss: float


#: Of a tensor that no codebook serves.
WORDS = Book(np.zeros(0, dtype=np.float32), "words", 0.0)


#: Chooses between the base's centres and a fresh fit: (survivors, bins, options, the base's) -> book.
Keep = Callable[[SurvivorCounts, int, DynaQuantOptions, "Centres | None"], Book]


def fit(
    counts: SurvivorCounts, bins: int, options: DynaQuantOptions, *, sigma: float | None = None
) -> Centres:
    """Weighted K-means on buckets: at most ``bins`` centres, float32, strictly ascending."""
    used = int(counts.values.size)
    if used == 0:
        return np.zeros(0, dtype=np.float32)
    weight = options.sigma if sigma is None else sigma
    weights = bucket_weights(counts.values, counts.counts, weight)
    clusters = min(bins, used)
    if options.kmeans == "lloyd":
        centres = lloyd.fit(counts.values, weights, clusters)
    else:
        centres = solve(counts, weights, clusters, weight).centres(clusters)
    return np.unique(centres.astype(np.float32))


def solve(
    counts: SurvivorCounts, weights: NDArray[np.float64], clusters: int, sigma: float
) -> exact.Solutions:
    """The exact solution for ``clusters`` and fewer; a second request solves for all of the cube at once."""
    known = counts.fits.get(sigma)
    if known is None or known.k_max < clusters:
        most = clusters if known is None else max(clusters, CUBE_BINS)
        known = exact.solve(counts.values, weights, min(most, int(counts.values.size)))
        counts.fits[sigma] = known
    return known


def within_cap(counts: SurvivorCounts, centres: Centres, bins: int, *, drawn: bool = False) -> bool:
    """Whether the tensor's error under ``centres`` is within `ERROR_CAP` for ``bins`` centres.

    Args:
        counts: the tensor's survivors.
        centres: of its codebook.
        bins: that were asked for.
        drawn: whether codes are drawn (`dithered`), not those of the nearest centres.
    """
    return counts.relative_error(centres, drawn=drawn) <= (ERROR_CAP / bins) ** 2


def fresh_book(counts: SurvivorCounts, bins: int, options: DynaQuantOptions, *, drawn: bool = False) -> Book:
    """A fit of the tensor's own; where it breaks the cap, by count alone, with more bins, or `WORDS`."""
    centres = fit(counts, bins, options)
    if options.profile != "paper" and not within_cap(counts, centres, bins, drawn=drawn):
        wider = bins
        centres = fit(counts, wider, options, sigma=1.0)
        while wider < MAX_BINS and not within_cap(counts, centres, bins, drawn=drawn):
            wider = min(MAX_BINS, 2 * wider)
            centres = fit(counts, wider, options, sigma=1.0)
        if counts.coding_error(centres, drawn=drawn) > (ERROR_CAP / bins) ** 2:
            return WORDS
    return Book(centres, "own", counts.loss(centres))


def choose_book(
    counts: SurvivorCounts,
    bins: int,
    options: DynaQuantOptions,
    *,
    base: Centres | None,
    shared: Centres | None,
    keep: Keep | None = None,
    drawn: bool = False,
) -> Book:
    """The tensor's codebook: shared where it serves, else the base's while nearly as good, else fresh.

    Args:
        counts: the tensor's survivors.
        bins: centres asked for.
        options: the method's options; ``frozen_slack`` says how much worse the base's may be.
        base: centres that the base checkpoint holds for this tensor, or None.
        shared: the checkpoint's shared centres, or None.
        keep: which of the base's and a fresh one is taken; None: `keep_or_fit`.
        drawn: as `within_cap`.
    """
    if shared is not None and within_cap(counts, shared, bins, drawn=drawn):
        return Book(shared, "shared", counts.loss(shared))
    return (keep or keep_or_fit)(counts, bins, options, base)


def keep_or_fit(counts: SurvivorCounts, bins: int, options: DynaQuantOptions, base: Centres | None) -> Book:
    """The base's centres while nearly as good as a fit of as many, else a fresh fit.

    What a fit would reach is told by Lloyd's iterations from the base's centres: far cheaper than a fit, and
    nearly always the same, because they were fitted to what these weights were a little earlier.
    """
    if base is None or options.frozen_slack == 0:
        return fresh_book(counts, bins, options)
    loss, allowed = counts.loss(base), 1.0 + options.frozen_slack
    if base.size == min(bins, counts.values.size) and within_cap(counts, base, bins):
        weights = bucket_weights(counts.values, counts.counts, options.sigma)
        best = polish(counts.values, weights, base.astype(np.float64)).astype(np.float32)
        if loss <= allowed * counts.loss(best):
            return Book(base, "base", loss)
    fresh = fresh_book(counts, bins, options)
    if fresh is WORDS:
        return fresh
    keeps = base.size == fresh.centres.size and loss <= allowed * fresh.loss
    return Book(base, "base", loss) if keeps else fresh
