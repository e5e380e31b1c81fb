"""Masked language modelling: hidden words of a text, to be told from those around them.

Symbols are whole words and signs in lower case, the most frequent ones; all others share a symbol.  Words and
not characters: a character is all but told by its neighbours, and a model of a few dozen symbols has no
embedding to speak of.  In BERT Base a fifth of the parameters are embeddings, most of whose rows a step never
touches; with 2048 words of 128 numbers it is a quarter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.config.language import MaskedData
from dynaquant_core.experiments.data.dataset import IGNORED, Batch, drawn, even_split, leading

__all__ = ["Hiding", "Masked", "conceal", "encode_words", "split_words"]

#: Symbols that are no words of their own.
UNKNOWN, HIDDEN = 0, 1
SPECIAL = 2

#: Of the chosen words: hidden, and replaced by any other; the rest is shown as it is (BERT, sec. 3.1).
SHOWN_HIDDEN, SHOWN_WRONG = 0.8, 0.1

#: Rework is measured on at most this many words of the search set.
PART_TOKENS = 8192

_WORD = re.compile(r"<unk>|\w+|[^\w\s]")


def split_words(text: str) -> list[str]:
    """Words and signs of a text, in lower case.

    Example:
        >>> split_words("He ran, <unk> followed.")
        ['he', 'ran', ',', '<unk>', 'followed', '.']
    """
    return _WORD.findall(text.lower())


def encode_words(words: Sequence[str], known: Sequence[str]) -> NDArray[np.int64]:
    """Words as symbols: those of ``known`` from `SPECIAL` on, all others `UNKNOWN`.

    Example:
        >>> encode_words(["a", "b", "c"], ["c", "a"]).tolist()
        [3, 0, 2]
    """
    symbols = {word: place for place, word in enumerate(known, SPECIAL)}
    return np.array([symbols.get(word, UNKNOWN) for word in words], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Hiding:
    """How symbols are hidden.

    Args:
        share: of a sequence's symbols that are chosen; at least one a sequence.
        hidden: the symbol that stands for a hidden one.
        first, end: what may be shown in place of a chosen one, ``end`` not included.
        spared: a symbol that is never chosen; None: no such.
    """

    share: float
    hidden: int
    first: int
    end: int
    spared: int | None = None


def conceal(
    rows: NDArray[np.int64], hiding: Hiding, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Chooses the same number of symbols in each sequence, as far as it has so many, and conceals them.

    Args:
        rows: int64[sequences, symbols].
        hiding: how.
        generator: decides.

    Returns:
        (what the model sees, what it should say: `IGNORED` except at chosen places), both shaped as ``rows``.
    """
    count, length = rows.shape
    free = np.ones(rows.shape, dtype=np.bool_) if hiding.spared is None else rows != hiding.spared
    ranks = np.where(free, generator.random((count, length)), 2.0).argsort(axis=1).argsort(axis=1)
    chosen = (ranks < max(1, round(hiding.share * length))) & free
    way = generator.random((count, length))
    wrong = generator.integers(hiding.first, hiding.end, (count, length))
    shown = np.where(way < SHOWN_HIDDEN + SHOWN_WRONG, wrong, rows)
    seen = np.where(way < SHOWN_HIDDEN, hiding.hidden, shown)
    return np.where(chosen, seen, rows), np.where(chosen, rows, IGNORED)


class Masked:
    """A corpus cut in three, as `text.Text` is; what is hidden in the evaluation sets is fixed.

    The vocabulary is counted in the training part.

    Args:
        text: the corpus.
        section: batch, context, vocabulary and set sizes.
        evaluation_batch: sequences an evaluation batch.

    Raises:
        ExperimentError: fewer words for training than for evaluation.

    Example:
        >>> sizes = {"search_tokens": 32, "heldout_tokens": 32, "vocabulary": 4, "mask": 0.25}
        >>> section = MaskedData(name="masked", source="-", batch=2, context=8, **sizes)
        >>> data = Masked("to be or not to be " * 40, section, evaluation_batch=2)
        >>> inputs, targets = data.batch(seed=0, step=5)
        >>> inputs.shape, (targets >= 0).sum(1).tolist(), data.classes
        (torch.Size([2, 8]), [2, 2], 6)
    """

    def __init__(self, text: str, section: MaskedData, evaluation_batch: int) -> None:
        words, context = split_words(text), section.context
        search, heldout = (
            -(-tokens // context) for tokens in (section.search_tokens, section.heldout_tokens)
        )
        split = len(words) - (search + heldout) * context
        if split <= max(len(words) // 2, context):
            raise ExperimentError(
                f"data: {len(words)} words are too few for {section.search_tokens} search and "
                f"{section.heldout_tokens} held-out tokens beside as many for training; lower "
                f"data.search_tokens and data.heldout_tokens or give more text."
            )
        counts = Counter(words[:split])
        counts.pop("<unk>", None)  # some corpora write unknown words this way
        known = [word for word, _ in counts.most_common(section.vocabulary)]
        self.classes = SPECIAL + len(known)
        self._batch, self._context = section.batch, context
        self._hiding = Hiding(section.mask, HIDDEN, SPECIAL, self.classes, spared=UNKNOWN)
        codes = encode_words(words, known)
        self._train = codes[:split]
        blocks = codes[split:].reshape(-1, context)
        size = max(1, min(evaluation_batch, PART_TOKENS // context))
        dealt = drawn("deal blocks").permutation(len(blocks))
        self.search = self._fixed("search masks", blocks[np.sort(dealt[:search])], size)
        self.heldout = self._fixed("held-out masks", blocks[np.sort(dealt[search:])], size)
        self.part = leading(self.search, PART_TOKENS // context)

    def batch(self, seed: int, step: int) -> Batch:
        """Sequences from random places: int64[batch, context] as seen, and as it should be said."""
        generator = drawn("masked batch", seed, step)
        starts = generator.integers(0, len(self._train) - self._context + 1, self._batch)
        rows = self._train[starts[:, None] + np.arange(self._context)]
        return _tensors(*conceal(rows, self._hiding, generator))

    def _fixed(self, purpose: str, rows: NDArray[np.int64], size: int) -> list[Batch]:
        seen, said = conceal(rows, self._hiding, drawn(purpose))
        places = even_split(np.arange(len(rows)), size)
        return [_tensors(seen[part], said[part]) for part in places]


def _tensors(seen: NDArray[np.int64], said: NDArray[np.int64]) -> Batch:
    return torch.from_numpy(seen), torch.from_numpy(said)
