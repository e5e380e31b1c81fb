"""Codes of a run that began from a checkpoint: drawn, so that its next restore loses no movement (ours).

A restored weight lies exactly on a centre.  The nearest centre stays the same until the weight has gone half
the way to the next one, and until then every restore puts it back: most of what was learnt in between is
lost, whatever the loss says.  So from the first checkpoint after a restore on, a code is drawn from the two
centres around the weight (`quantize.dither`), and what a reader gets is right on average.  Beside it:

* the base's codebook is kept where it can be, so that only weights that moved change their code;
* outermost centres with more than a few weights beyond them get one more centre outside, because what lies
  outside all centres cannot be drawn from two;
* zero, the pruned code, is one more level: a weight near it is pruned by chance instead of by rule.

A reader is told the epoch of the draws, for the coder's contexts.  Before the first restore nothing of all
this happens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.coding.counts import joint_counts
from dynaquant_core.config import MAX_BINS, DynaQuantOptions
from dynaquant_core.methods.dynaquant.book import ERROR_CAP, WORDS, Book, Centres, fresh_book, within_cap
from dynaquant_core.methods.dynaquant.counts import SurvivorCounts
from dynaquant_core.methods.dynaquant.held import Coded, Held
from dynaquant_core.methods.dynaquant.sample import BLOCK
from dynaquant_core.methods.dynaquant.survey import Survey
from dynaquant_core.quantize.cells import LARGEST
from dynaquant_core.quantize.cut import NO_CUT, PRUNED, Cut
from dynaquant_core.quantize.dither import PLACES, Levels, assign_dithered, contexts
from dynaquant_core.quantize.lattice import offset_key, offsets

__all__ = [
    "by_place",
    "drawn_contexts",
    "drawn_counts",
    "epoch_of",
    "fitted_to",
    "keep_or_widen",
    "levels_of",
]

#: Largest share of a tensor's survivors nearest to an outermost centre; half of their movement is lost.
OUTERMOST = 0.02

#: A base's codebook is kept without a comparison while the error under it is below this share of the cap:
#: few weights have left their centres then, and a fit would only tell sketches' buckets apart.
EARLY = 0.1


def epoch_of(before: Held | None, options: DynaQuantOptions) -> int | None:
    """The epoch of the draws of a run's next checkpoint; None: its codes are those of the nearest centres.

    Another one after every restore, the same on every machine: a digest of what was restored.

    Args:
        before: what a reader held after the run's last checkpoint, or what the run was restored from.
        options: the method's options.
    """
    if before is None or options.after_restore == "nearest":
        return None
    return before.digest if before.restored else before.epoch


def levels_of(survey: Survey, name: str, cut: Cut, centres: Centres) -> Levels:
    """The levels of a tensor's codes; zero among them where the cut prunes, or the base's did."""
    return Levels.of(centres, survey.state[name].dtype, zero=_has_zero(survey, name, cut))


def fitted_to(survey: Survey, name: str, cut: Cut) -> SurvivorCounts:
    """The survivors that centres are for: those that are not zero, where that is a level of its own."""
    counts = survey.survivors(name, cut)
    if survey.epoch is None or not _has_zero(survey, name, cut):
        return counts
    others = counts.values != 0
    return replace(
        counts, values=counts.values[others], edges=counts.edges[others], counts=counts.counts[others]
    )


def _has_zero(survey: Survey, name: str, cut: Cut) -> bool:
    base = None if survey.ref is None else survey.ref.coded(name)
    if cut.prune >= 0 or base is None:
        return cut.prune >= 0
    return survey.recent(name, NO_CUT, "zero", lambda *_: bool((base.codes == PRUNED).any()))


def keep_or_widen(counts: SurvivorCounts, bins: int, options: DynaQuantOptions, base: Centres | None) -> Book:
    """The base's centres while nearly as good as a fresh fit's, few weights beyond them; see `book.Keep`."""
    book = fresh_book(counts, bins, options, drawn=True)
    if book is WORDS:
        return book
    fitted = book.centres
    fresh = widened(counts, fitted)
    if base is not None and options.frozen_slack > 0 and within_cap(counts, base, bins, drawn=True):
        kept = widened(counts, base)
        alike = fitted.size <= kept.size <= max(bins, fitted.size) + 2
        enough = EARLY * (ERROR_CAP / bins) ** 2 * counts.energy
        allowed = max(enough, (1.0 + options.frozen_slack) * counts.dithered_loss(fresh))
        if alike and counts.dithered_loss(kept) <= allowed:
            return Book(kept, "base" if kept.size == base.size else "own", counts.loss(kept))
    return Book(fresh, "own", counts.loss(fresh))


def widened(counts: SurvivorCounts, centres: Centres) -> Centres:
    """The centres, with another one at an end where more than `OUTERMOST` of the survivors are nearest to it.

    Example:
        >>> values = np.array([-2.0, -1.0, 0.0, 0.75])
        >>> edges = np.stack((values - 0.25, values + 0.25), axis=1)
        >>> counts = SurvivorCounts(values, edges, np.array([1, 9, 80, 10]), energy=1.0, pruned_energy=0.0)
        >>> widened(counts, np.array([-1.0, 0.0, 0.75], dtype=np.float32)).tolist()
        [-2.25, -1.0, 0.0, 0.75, 1.0]
    """
    if not centres.size or not counts.values.size:
        return centres
    wide = centres.astype(np.float64)
    nearest = np.searchsorted((wide[1:] + wide[:-1]) / 2, counts.values)
    ends = []
    # A bucket's edge, not what stands for it: the bucket of the outermost centre has values beyond it too.
    low, high = np.clip((counts.edges[0, 0], counts.edges[-1, 1]), -LARGEST, LARGEST)
    for outermost, end in ((0, low), (centres.size - 1, high)):
        crowded = counts.counts[nearest == outermost].sum() > OUTERMOST * counts.counts.sum()
        if crowded and not wide[0] <= end <= wide[-1]:
            ends.append(end)
    found = np.unique(np.concatenate((wide, ends)).astype(np.float32))
    return found if found.size <= MAX_BINS else centres


def drawn_contexts(base: Coded, epoch: int, name: str, stride: int = 1) -> NDArray[np.uint16]:
    """Contexts of a tensor's codes (`quantize.dither.contexts`), or of every ``stride``-th block of them."""
    key = offset_key(epoch, name)
    if stride == 1:
        return contexts(base.codes, key)
    starts = range(0, base.codes.size - BLOCK * stride + 1, BLOCK * stride)
    return np.concatenate([contexts(base.codes[start : start + BLOCK], key, start) for start in starts])


def drawn_counts(survey: Survey, name: str, cut: Cut, centres: Centres) -> tuple[NDArray[np.int64], float]:
    """Joint counts [base code, place, code] of a tensor's sample, and how many weights each stands for.

    Codes depend on more than a sketch knows, so the sample is coded.  Without a base there is one base code
    and one place.
    """
    epoch = survey.epoch
    assert epoch is not None
    part, slope, stride = survey.sampled(name, cut)
    levels = levels_of(survey, name, cut, centres)
    draws = survey.recent(name, NO_CUT, "draws", lambda *_: _draws(epoch, name, part, stride))
    codes, _ = assign_dithered(part, slope, cut, levels, survey.signed[name].buckets, draws)
    base = None if survey.ref is None else survey.ref.coded(name)
    known = None
    if base is not None:
        known = survey.recent(name, NO_CUT, "known", lambda *_: drawn_contexts(base, epoch, name, stride))
    joint = joint_counts(codes, known)
    scale = survey.state[name].numel() / max(1, codes.size)
    return (joint[:, None] if known is None else by_place(joint)), scale


def by_place(joint: NDArray[np.int64]) -> NDArray[np.int64]:
    """Joint counts [context, code] of `drawn_contexts` as [base code, place, code]."""
    whole = np.zeros((-(-joint.shape[0] // PLACES) * PLACES, joint.shape[1]), dtype=np.int64)
    whole[: joint.shape[0]] = joint
    return whole.reshape(-1, PLACES, joint.shape[1])


def _draws(epoch: int, name: str, part: Tensor, stride: int) -> int | NDArray[np.float32]:
    """The draws of a sample: those that its weights have in the whole tensor."""
    key = offset_key(epoch, name)
    if stride == 1:
        return key
    blocks = range(part.numel() // BLOCK)
    return np.concatenate([offsets(key, BLOCK, number * BLOCK * stride) for number in blocks])
