"""Sections of language experiments: the masked language model and its data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dynaquant_core.experiments.config.section import Count, Section, TransformerSize, as_number

__all__ = ["BertModel", "ByteData", "MaskedData"]

#: A share that is neither nothing nor all.
Part = Annotated[float, BeforeValidator(as_number), Field(gt=0.0, lt=1.0, allow_inf_nan=False)]


class BertModel(TransformerSize):
    """``model: {name: bert}``; vocabulary and context come from the data."""

    name: Literal["bert"]
    layers: Count = 4
    width: Count = 128


class MaskedData(Section):
    """``data: {name: masked}``: words of a text, some of them hidden and to be told from the others.

    Args:
        source: as in ``text``: a path, tried as given and under the data root (with ``*`` for several files),
            or ``stdlib``.
        max_bytes: the corpus is cut after about this many bytes.
        batch: sequences a training step.
        context: words a sequence.
        mask: share of a sequence's words that are hidden.
        vocabulary: how many of the most frequent words and signs are told apart.
        search_tokens, heldout_tokens: words in each of the two fixed evaluation sets, hidden or not.
    """

    name: Literal["masked"]
    source: str
    max_bytes: Count = 8_000_000
    batch: Count = 16
    context: Count = 64
    mask: Part = 0.15
    vocabulary: Annotated[int, Field(ge=2)] = 2048
    search_tokens: Count = 8192
    heldout_tokens: Count = 16_384


class ByteData(Section):
    """``data: {name: bytes}``: as ``text``, but its symbols are the 256 bytes of UTF-8.

    They are the same for every corpus, so that a model pre-trained on one text can go on with another.

    Args:
        source, max_bytes, batch: as in ``text``.
        context: bytes a sequence.
        search_tokens, heldout_tokens: predicted bytes in each of the two fixed evaluation sets.
    """

    name: Literal["bytes"]
    source: str
    max_bytes: Count = 8_000_000
    batch: Count = 16
    context: Count = 64
    search_tokens: Count = 8192
    heldout_tokens: Count = 16_384
