"""What a tensor will cost, from counts: candidates are compared without encoding them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.coding import cost
from dynaquant_core.methods.dynaquant.book import WORDS, Book
from dynaquant_core.methods.dynaquant.dithered import drawn_counts
from dynaquant_core.methods.dynaquant.plain import word_stream
from dynaquant_core.methods.dynaquant.survey import Survey
from dynaquant_core.methods.words import plain_of
from dynaquant_core.quantize.codebook import FIRST_CENTRE
from dynaquant_core.quantize.cut import NO_CUT, Cut

__all__ = ["drawn_bytes", "predicted_bytes", "stream_bytes"]

Counts = NDArray[np.int64]


def predicted_bytes(survey: Survey, name: str, cut: Cut, book: Book) -> float:
    """Bytes of a tensor's codes and protected weights under a cut and a codebook, or of its words."""
    if book is WORDS:
        return float(survey.recent(name, NO_CUT, "words", lambda *_: word_bytes(survey, name)))
    centres = book.centres
    if survey.epoch is None:
        tally, scale = survey.tally(name, cut)
        joint = tally.by_level(survey.lookup(name, centres), FIRST_CENTRE + centres.size).T
    else:
        joint, scale = drawn_counts(survey, name, cut, centres)
    has_base = survey.ref is not None and survey.ref.coded(name) is not None
    whole = joint if scale == 1.0 else np.rint(joint * scale).astype(np.int64)
    predict = stream_bytes if survey.epoch is None else drawn_bytes
    return predict(whole, has_base=has_base, coder=survey.options.coder) + survey.protected_bytes(name, cut)


def word_bytes(survey: Survey, name: str) -> int:
    """Bytes of a tensor bit for bit: encoded to know it."""
    return len(word_stream(name, plain_of(survey.state[name], bf16=False), survey.ref).payload)


def drawn_bytes(joint: Counts, *, has_base: bool, coder: str) -> float:
    """Predicted bytes of drawn codes from their joint counts [base code, place, code]."""
    plain = stream_bytes(joint.sum(axis=1), has_base=has_base, coder=coder)
    if not has_base or coder == "paper":
        return plain
    return min(plain, float(cost.context_bytes(joint.reshape(-1, joint.shape[2]))))


def stream_bytes(joint: Counts, *, has_base: bool, coder: str) -> float:
    """Predicted bytes of a coded stream from its joint counts [base code, code] (paper sec. 6)."""
    marginal = joint.sum(axis=0)
    predictions: tuple[Callable[[], float], ...]
    if coder == "paper" and has_base:
        predictions = (lambda: cost.paper_bytes(joint),)
    elif coder == "paper":
        predictions = (lambda: cost.huffman_bytes(marginal), lambda: cost.rle_huffman_bytes(joint))
    elif has_base:
        predictions = (lambda: cost.order0_bytes(marginal), lambda: cost.context_bytes(joint))
    else:
        predictions = (lambda: cost.order0_bytes(marginal),)
    return min(float(predict()) for predict in predictions)
