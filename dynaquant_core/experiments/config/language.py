"""Sections of language experiments: models, and the text, tokens and sentences that they read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from dynaquant_core.experiments.config.section import (
    CorpusSection,
    Count,
    Section,
    Share,
    TransformerSize,
    as_number,
)

__all__ = [
    "BertModel",
    "ByteData",
    "HFModel",
    "MaskedData",
    "MiniLMModel",
    "SentenceData",
    "TokenData",
]

#: A share that is neither nothing nor all.
Part = Annotated[float, BeforeValidator(as_number), Field(gt=0.0, lt=1.0, allow_inf_nan=False)]


class BertModel(TransformerSize):
    """``model: {name: bert}``; vocabulary and context come from the data."""

    name: Literal["bert"]
    layers: Count = 4
    width: Count = 128


class MaskedData(CorpusSection):
    """``data: {name: masked}``: words of a text, some of them hidden and to be told from the others.

    Args:
        source, max_bytes, batch, context: see `CorpusSection`; symbols are words.
        mask: share of a sequence's words that are hidden.
        vocabulary: how many of the most frequent words and signs are told apart.
        search_tokens, heldout_tokens: words in each of the two fixed evaluation sets, hidden or not.
    """

    name: Literal["masked"]
    mask: Part = 0.15
    vocabulary: Annotated[int, Field(ge=2)] = 2048
    search_tokens: Count = 8192
    heldout_tokens: Count = 16_384


class ByteData(CorpusSection):
    """``data: {name: bytes}``: as ``text``, but its symbols are the 256 bytes of UTF-8.

    They are the same for every corpus, so that a model pre-trained on one text can go on with another.

    Args:
        source, max_bytes, batch, context: see `CorpusSection`; symbols are bytes.
        search_tokens, heldout_tokens: predicted bytes in each of the two fixed evaluation sets.
    """

    name: Literal["bytes"]
    search_tokens: Count = 8192
    heldout_tokens: Count = 16_384


class MiniLMModel(TransformerSize):
    """``model: {name: minilm}``: a BERT encoder whose words are averaged to a sentence; needs transformers.

    Of one sentence a new head tells the class; of two the cosine of their averages is the prediction, so that
    similarity needs no head.  The defaults are the shape of all-MiniLM-L6-v2.
    """

    name: Literal["minilm"]
    layers: Count = 6
    width: Count = 384
    heads: Count = 12
    dropout: Share = 0.1


class HFModel(Section):
    """``model: {name: hf}``: a model of the library transformers, made from a folder's ``config.json``.

    What it is made for follows from the data: the next token, hidden tokens, a class or a score.

    Args:
        path: the folder, tried as given, then under the data root.
        dropout: in place of the config's own, where given.
    """

    name: Literal["hf"]
    path: str
    dropout: Share | None = None


class SentenceData(Section):
    """``data: {name: sst2 | mnli | stsb}``: sentences, or pairs of them, with a class or a score.

    Args:
        name: ``sst2``: a sentence and 0 or 1; ``mnli``: premise, hypothesis and 0, 1 or 2; ``stsb``: two
            sentences and a score of 0 to 5.
        source: a folder with files whose names hold ``train``, ``dev`` and, for the held-out set, ``test``
            (the rest of dev where there is none): .tsv, or .csv, a column each in the order above; a heading
            is passed over.
        tokenizer: a ``tokenizer.json`` of the library tokenizers; ``package:NAME/FILE`` as well.
        batch: items a training step.
        context: most tokens an item; longer ones are cut.
        joined: whether a pair is one text with a separator (BERT's own way) or two texts.
        search_items, heldout_items: sizes of the two fixed evaluation sets.
    """

    name: Literal["sst2", "mnli", "stsb"]
    source: str
    tokenizer: str
    batch: Count = 16
    context: Annotated[int, Field(ge=3)] = 64
    joined: bool = False
    search_items: Count = 500
    heldout_items: Count = 1000


class TokenData(Section):
    """``data: {name: tokens}``: a text that is tokens already, as one long array on disk.

    Args:
        source: .npy of whole numbers in one dimension, or .bin of little-endian uint16 (nanoGPT's format).
        vocabulary: number of different tokens.
        batch: sequences a training step.
        context: tokens a sequence.
        mask: share of a sequence's tokens that are hidden; None: the next token is to be told.
        mask_token: the token that stands for a hidden one; needed with ``mask``.
        search_tokens, heldout_tokens: tokens in each of the two fixed evaluation sets.
    """

    name: Literal["tokens"]
    source: str
    vocabulary: Annotated[int, Field(ge=2)]
    batch: Count = 16
    context: Count = 512
    mask: Part | None = None
    mask_token: Annotated[int, Field(ge=0)] | None = None
    search_tokens: Count = 65_536
    heldout_tokens: Count = 131_072

    @model_validator(mode="after")
    def _a_token_for_what_is_hidden(self) -> TokenData:
        if (self.mask is None) != (self.mask_token is None):
            raise ValueError("give mask and mask_token together, or neither")
        if self.mask_token is not None and self.mask_token >= self.vocabulary:
            raise ValueError(f"mask_token {self.mask_token} is outside the vocabulary of {self.vocabulary}")
        return self
