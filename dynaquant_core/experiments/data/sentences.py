"""Sentences and pairs of them, with a class or a score: SST-2, MNLI, STS-B."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from dynaquant_core.errors import DependencyError, ExperimentError
from dynaquant_core.experiments.config.language import SentenceData
from dynaquant_core.experiments.data.dataset import Batch, drawn, even_split, file_digest, leading, locate

__all__ = ["Item", "Sentences", "fingerprint", "read_items", "read_tokenizer"]

#: (the sentence or two sentences, class or score).
Item = tuple[tuple[str, ...], float]

#: Sentences of an item, and the number of classes (1: a score, which is divided by `HIGHEST`).
SHAPES = {"sst2": (1, 2), "mnli": (2, 3), "stsb": (2, 1)}
HIGHEST = 5.0

#: Rework is measured on at most this many items of the search set.
PART_ITEMS = 1000


def read_items(path: Path, name: str) -> list[Item]:
    """The items of one file, in its order; a heading, whose last column is no number, is passed over.

    Raises:
        ExperimentError: the file cannot be read, or a row is not as it should be; names it.
    """
    texts, classes = SHAPES[name]
    items = []
    for number, row in enumerate(_rows(path), 1):
        try:
            label = float(row[-1]) if row else float("nan")
        except ValueError:
            if number == 1:
                continue
            label = float("nan")
        good = 0 <= label <= HIGHEST if classes == 1 else label in range(classes)
        if len(row) != texts + 1 or not good:
            raise ExperimentError(
                f"data: {path}, row {number}: expected {texts} text{'s' * (texts > 1)} and "
                f"{'a score of 0 to 5' if classes == 1 else f'a class below {classes}'}, found {row!r:.120}."
            )
        items.append((tuple(row[:-1]), label))
    return items


def _rows(path: Path) -> list[list[str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            if path.suffix == ".tsv":
                return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
            return list(csv.reader(file))
    except UnicodeDecodeError as error:
        raise ExperimentError(
            f"data: {path} is not UTF-8 text ({error.reason} at byte {error.start})."
        ) from None
    except (OSError, csv.Error) as error:
        raise ExperimentError(f"data: {path} cannot be read: {error}.") from None


def read_tokenizer(source: str) -> Any:
    """A `tokenizers.Tokenizer`, without the padding and truncation that its file may ask for.

    Raises:
        DependencyError: the library is not installed.
        ExperimentError: the file is missing or holds no tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise DependencyError.of_extra("sentences need the library tokenizers", "transformers") from None
    path = locate(source)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises no other
        raise ExperimentError(f"data: {path} holds no tokenizer ({error}).") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def files(source: str) -> dict[str, Path]:
    """``train``, ``dev`` and perhaps ``test`` -> file.

    Raises:
        ExperimentError: the folder, or one of the first two, is missing.
    """
    folder = locate(source)
    tables = [path for path in sorted(folder.glob("*")) if path.suffix in {".tsv", ".csv"}]
    parts = ("train", "dev", "test")
    found = {part: path for part in parts for path in reversed(tables) if part in path.stem}
    missing = [part for part in ("train", "dev") if part not in found]
    if missing:
        raise ExperimentError(
            f"data: {folder} has no file for {' and '.join(missing)}; expected .tsv or .csv files whose "
            f"names hold train, dev and test."
        )
    return found


def fingerprint(section: SentenceData) -> str:
    """Hex digest of the files and the tokenizer."""
    paths = [*files(section.source).values(), locate(section.tokenizer)]
    return xxhash.xxh3_128_hexdigest("".join(map(file_digest, paths)).encode())


class Sentences:
    """Training items in a new order each epoch; the search set from dev, the held-out set from test.

    Args:
        section: files, batch and set sizes.
        evaluation_batch: items an evaluation batch.

    Raises:
        ExperimentError: files are missing or not as they should be, or hold fewer items than asked for.
        DependencyError: the library tokenizers is not installed.
    """

    def __init__(self, section: SentenceData, evaluation_batch: int) -> None:
        self._texts, self.classes = SHAPES[section.name]
        self._batch, self._joined = section.batch, section.joined and self._texts > 1
        tokenizer = read_tokenizer(section.tokenizer)
        tokenizer.enable_truncation(section.context)
        self._tokenizer, self._pad = tokenizer, pad_token(tokenizer)
        found = {part: read_items(path, section.name) for part, path in files(section.source).items()}
        self._train = found["train"]
        search, heldout = _evaluation_items(found, section)
        if len(self._train) < section.batch:
            raise ExperimentError(f"data: {len(self._train)} training items in batches of {section.batch}.")
        self._codes = self._encode(self._train)
        size = min(evaluation_batch, PART_ITEMS)
        self.search, self.heldout = (self._fixed(items, size) for items in (search, heldout))
        self.part = leading(self.search, PART_ITEMS)
        self._epoch: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def batch(self, seed: int, step: int) -> Batch:
        """(int64[batch, time] or, of pairs apart, int64[batch, 2, time], padded; classes or scores)."""
        epoch, index = divmod(step, len(self._train) // self._batch)
        if self._epoch is None or self._epoch[0] != (seed, epoch):
            self._epoch = ((seed, epoch), drawn("sentence order", seed, epoch).permutation(len(self._train)))
        chosen = self._epoch[1][index * self._batch : (index + 1) * self._batch]
        return self._tensors(
            [self._codes[place] for place in chosen], [self._train[place] for place in chosen]
        )

    def _encode(self, items: Sequence[Item]) -> list[list[list[int]]]:
        """For each item the tokens of each of its texts."""
        if self._joined:
            return [[code.ids] for code in self._tokenizer.encode_batch([texts for texts, _ in items])]
        columns = [
            self._tokenizer.encode_batch([texts[column] for texts, _ in items])
            for column in range(self._texts)
        ]
        return [[code.ids for code in codes] for codes in zip(*columns, strict=True)]

    def _fixed(self, items: Sequence[Item], size: int) -> list[Batch]:
        codes = self._encode(items)
        return [
            self._tensors([codes[place] for place in part], [items[place] for place in part])
            for part in even_split(np.arange(len(items)), size)
        ]

    def _tensors(self, codes: Sequence[Sequence[Sequence[int]]], items: Sequence[Item]) -> Batch:
        longest = max(len(text) for texts in codes for text in texts)
        padded = [[[*text, *[self._pad] * (longest - len(text))] for text in texts] for texts in codes]
        tokens = torch.tensor(padded, dtype=torch.int64)
        labels = [label for _, label in items]
        return (tokens.squeeze(1) if tokens.shape[1] == 1 else tokens), self._targets(labels)

    def _targets(self, labels: Sequence[float]) -> Tensor:
        if self.classes > 1:
            return torch.tensor(labels, dtype=torch.int64)
        return torch.tensor(labels, dtype=torch.float32) / HIGHEST


def pad_token(tokenizer: Any) -> int:
    """What fills up the shorter texts of a batch: BERT's or GPT-NeoX's own, else token 0."""
    for text in ("[PAD]", "<|padding|>", "<pad>"):
        number = tokenizer.token_to_id(text)
        if number is not None:
            return int(number)
    return 0


def _evaluation_items(found: dict[str, list[Item]], section: SentenceData) -> tuple[list[Item], list[Item]]:
    dev = found["dev"]
    dealt = [dev[place] for place in drawn("deal items").permutation(len(dev))]  # files are sorted by origin
    search, left = dealt[: section.search_items], dealt[section.search_items :]
    test = found.get("test", left)
    heldout = [test[place] for place in drawn("deal test").permutation(len(test))][: section.heldout_items]
    if len(search) < section.search_items or len(heldout) < section.heldout_items:
        raise ExperimentError(
            f"data: {section.source} has {len(search)} search and {len(heldout)} held-out items, expected "
            f"{section.search_items} and {section.heldout_items}; lower data.search_items or "
            f"data.heldout_items."
        )
    return search, heldout
