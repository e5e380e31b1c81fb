"""Next-character prediction over a corpus."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.config.language import ByteData
from dynaquant_core.experiments.config.parts import TextData
from dynaquant_core.experiments.data.dataset import Batch, drawn, even_split, leading

__all__ = ["MAX_VOCABULARY", "Bytes", "Text", "encode"]

#: Characters that get a symbol of their own; rarer ones share one.
MAX_VOCABULARY = 256

#: Rework is measured on at most this many characters of the search set.
PART_TOKENS = 8192


def encode(text: str) -> tuple[NDArray[np.int64], int]:
    """Text as symbols: characters in the order of their code points, the rarest sharing symbol 0.

    Returns:
        (int64[characters], number of symbols), the latter at most `MAX_VOCABULARY`.

    Example:
        >>> codes, symbols = encode("banana")
        >>> codes.tolist(), symbols
        ([1, 0, 2, 0, 2, 0], 3)
    """
    points = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    characters, codes, counts = np.unique(points, return_inverse=True, return_counts=True)
    if len(characters) <= MAX_VOCABULARY:
        return codes.astype(np.int64), len(characters)
    common = np.sort(np.argsort(-counts, kind="stable")[: MAX_VOCABULARY - 1])
    symbol = np.zeros(len(characters), dtype=np.int64)
    symbol[common] = np.arange(1, MAX_VOCABULARY)
    return symbol[codes], MAX_VOCABULARY


class Text:
    """A corpus cut in three: training text in front, and behind it blocks dealt to the two evaluation sets.

    Blocks (one sequence each) are dealt at random, always in the same way, so that both evaluation sets come
    from the same pages.  No character is in more than one of the three.

    Args:
        text: the corpus.
        section: batch, context and set sizes.
        evaluation_batch: sequences an evaluation batch.

    Raises:
        ExperimentError: less text for training than for evaluation.

    Example:
        >>> sizes = {"search_tokens": 32, "heldout_tokens": 32}
        >>> section = TextData(name="text", source="-", batch=2, context=8, **sizes)
        >>> data = Text("to be or not to be " * 40, section, evaluation_batch=2)
        >>> inputs, targets = data.batch(seed=0, step=5)
        >>> inputs.shape, bool((inputs[:, 1:] == targets[:, :-1]).all()), len(data.search)
        (torch.Size([2, 8]), True, 2)
    """

    def __init__(self, text: str, section: TextData | ByteData, evaluation_batch: int) -> None:
        codes, self.classes = self._symbols(text)
        self._batch, self._context = section.batch, section.context
        search, heldout = (
            -(-tokens // section.context) for tokens in (section.search_tokens, section.heldout_tokens)
        )
        block = section.context + 1
        split = len(codes) - (search + heldout) * block
        if split <= max(len(codes) // 2, block):
            raise ExperimentError(
                f"data: {len(codes)} characters are too few for {section.search_tokens} search and "
                f"{section.heldout_tokens} held-out tokens beside as many for training; lower "
                f"data.search_tokens and data.heldout_tokens or give more text."
            )
        self._train = codes[:split]
        blocks = codes[split:].reshape(-1, block)
        evaluation_batch = max(1, min(evaluation_batch, PART_TOKENS // section.context))
        dealt = drawn("deal blocks").permutation(len(blocks))
        self.search = _batches(blocks[np.sort(dealt[:search])], evaluation_batch)
        self.heldout = _batches(blocks[np.sort(dealt[search:])], evaluation_batch)
        self.part = leading(self.search, PART_TOKENS // section.context)

    @staticmethod
    def _symbols(text: str) -> tuple[NDArray[np.int64], int]:
        return encode(text)

    def batch(self, seed: int, step: int) -> Batch:
        """Sequences from random places: (int64[batch, context], the same one character later)."""
        starts = drawn("text batch", seed, step).integers(0, len(self._train) - self._context, self._batch)
        rows = self._train[starts[:, None] + np.arange(self._context + 1)]
        return _pair(rows)


class Bytes(Text):
    """The same with the 256 bytes of UTF-8 as symbols, whatever the corpus."""

    @staticmethod
    def _symbols(text: str) -> tuple[NDArray[np.int64], int]:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64), 256


def _pair(rows: NDArray[np.int64]) -> Batch:
    tokens = torch.from_numpy(np.ascontiguousarray(rows))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _batches(blocks: NDArray[np.int64], size: int) -> list[Batch]:
    return [_pair(part) for part in even_split(blocks, size)]
