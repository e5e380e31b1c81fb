"""A text that was made tokens before: one long array on disk, of which a batch reads what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.config.language import TokenData
from dynaquant_core.experiments.data.dataset import Batch, drawn, even_split, leading, locate
from dynaquant_core.experiments.data.masked import Hiding, conceal

__all__ = ["Tokens", "read_tokens"]

#: Rework is measured on at most this many tokens of the search set.
PART_TOKENS = 8192


def read_tokens(path: Path) -> NDArray[Any]:
    """The array of a file, mapped and not read.

    Raises:
        ExperimentError: it is missing, or no array of whole numbers in one dimension.
    """
    try:
        if path.suffix == ".npy":
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            array = np.memmap(path, dtype="<u2", mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise ExperimentError(
            f"data: {path} holds no tokens ({error}); expected .npy, or .bin of uint16."
        ) from None
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ExperimentError(
            f"data: {path} holds {array.dtype}{list(array.shape)}, expected whole numbers in one dimension."
        )
    return array


class Tokens:
    """A long text cut in three, as `text.Text` is: the next token is to be told, or those that are hidden.

    Args:
        section: file, batch, context and set sizes.
        evaluation_batch: sequences an evaluation batch.

    Raises:
        ExperimentError: the file is missing or no array of tokens, or holds fewer for training than for
            evaluation, or a token outside the vocabulary (looked for where batches are made).
    """

    def __init__(self, section: TokenData, evaluation_batch: int) -> None:
        self._path = locate(section.source)
        self._section, self.classes = section, section.vocabulary
        array = read_tokens(self._path)
        context, self._more = section.context, int(section.mask is None)
        block = context + self._more
        search, heldout = (
            -(-tokens // context) for tokens in (section.search_tokens, section.heldout_tokens)
        )
        split = len(array) - (search + heldout) * block
        if split <= max(len(array) // 2, block):
            raise ExperimentError(
                f"data: {len(array)} tokens are too few for {section.search_tokens} search and "
                f"{section.heldout_tokens} held-out tokens beside as many for training; lower "
                f"data.search_tokens and data.heldout_tokens or give more text."
            )
        self._train = array[:split]
        blocks = np.asarray(array[split:]).reshape(-1, block)
        size = max(1, min(evaluation_batch, PART_TOKENS // context))
        dealt = drawn("deal blocks").permutation(len(blocks))
        self.search = self._fixed("search masks", blocks[np.sort(dealt[:search])], size)
        self.heldout = self._fixed("held-out masks", blocks[np.sort(dealt[search:])], size)
        self.part = leading(self.search, max(1, PART_TOKENS // context))

    def batch(self, seed: int, step: int) -> Batch:
        """Sequences from random places: int64[batch, context] as seen, and as it should be said."""
        generator = drawn("token batch", seed, step)
        length = self._section.context + self._more
        starts = generator.integers(0, len(self._train) - length + 1, self._section.batch)
        return self._pair(np.stack([self._train[start : start + length] for start in starts]), generator)

    def _fixed(self, purpose: str, rows: NDArray[Any], size: int) -> list[Batch]:
        generator = drawn(purpose)
        return [self._pair(part, generator) for part in even_split(rows, size)]

    def _pair(self, rows: NDArray[Any], generator: np.random.Generator) -> Batch:
        rows = rows.astype(np.int64)
        if rows.max(initial=0) >= self.classes or rows.min(initial=0) < 0:
            raise ExperimentError(
                f"data: {self._path} holds token {rows.max()}, outside data.vocabulary ({self.classes})."
            )
        section = self._section
        if section.mask is None or section.mask_token is None:
            return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())
        hiding = Hiding(section.mask, section.mask_token, 0, self.classes)
        seen, said = conceal(rows, hiding, generator)
        return torch.from_numpy(seen), torch.from_numpy(said)
