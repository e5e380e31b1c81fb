"""Ratings drawn from a stated distribution (`config.small.RatingsData`): no real ones are at hand."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.experiments.config.small import RatingsData
from dynaquant_core.experiments.data.dataset import Batch, drawn, drawn_digest, even_split, leading
from dynaquant_core.experiments.data.epochs import Epochs

__all__ = ["Ratings", "drawn_ratings", "fingerprint"]

#: Counts up when other ratings are drawn from the same section.
DRAWING = 1

#: Rework of a run that trains is measured on at most this many ratings of the search set.
PART_RATINGS = 10_000


class Ratings:
    """Ratings to train on in a new order each epoch; others held out.

    The search set is part of the ratings that are trained on: what is measured there is the training loss.

    Args:
        section: the distribution, batch and set sizes.
        evaluation_batch: ratings an evaluation batch.
    """

    classes = 0

    def __init__(self, section: RatingsData, evaluation_batch: int) -> None:
        pairs, values = drawn_ratings(section)
        out = section.heldout_ratings
        self._pairs, self._values = pairs[out:], values[out:]
        self._epochs = Epochs("rating order", len(self._pairs), section.batch)
        self.heldout = [
            _batch(pairs[places], values[places]) for places in even_split(np.arange(out), evaluation_batch)
        ]
        self.search = [
            _batch(self._pairs[places], self._values[places])
            for places in even_split(np.arange(section.search_ratings), evaluation_batch)
        ]
        self.part = leading(self.search, PART_RATINGS)

    def batch(self, seed: int, step: int) -> Batch:
        """(int64[batch, 2] of users and items, float32[batch])."""
        places = self._epochs.places(seed, step)
        return _batch(self._pairs[places], self._values[places])


def drawn_ratings(section: RatingsData) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(int64[n, 2] of users and items, no pair twice; float32[n]), in an order of no meaning."""
    generator = drawn("ratings", section.draw)
    users = generator.standard_normal((section.users, section.rank))
    items = generator.standard_normal((section.items, section.rank))
    chosen = generator.choice(section.users * section.items, section.ratings, replace=False)
    pairs = np.stack(np.divmod(chosen, section.items), axis=1)
    clean = (users[pairs[:, 0]] * items[pairs[:, 1]]).sum(1) / section.rank**0.5
    noisy = clean + section.noise * generator.standard_normal(section.ratings)
    return pairs, noisy.astype(np.float32)


def fingerprint(section: RatingsData) -> str:
    """Hex digest of what decides the ratings."""
    return drawn_digest(section, DRAWING)


def _batch(pairs: NDArray[np.int64], values: NDArray[np.float32]) -> Batch:
    return torch.from_numpy(pairs), torch.from_numpy(values)
