"""Labelled points drawn from a stated distribution (`config.small.PointData`)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.experiments.config.small import PointData
from dynaquant_core.experiments.data.dataset import Batch, drawn, drawn_digest, even_split, leading
from dynaquant_core.experiments.data.epochs import Epochs

__all__ = ["Points", "drawn_points", "fingerprint"]

#: Counts up when other points are drawn from the same section.
DRAWING = 1

#: Rework is measured on at most this many points of the search set.
PART_POINTS = 1000


class Points:
    """Points to train on in a new order each epoch; two sets of others to measure on.

    Args:
        section: the distribution, batch and set sizes.
        evaluation_batch: points an evaluation batch.
    """

    def __init__(self, section: PointData, evaluation_batch: int) -> None:
        points, labels = drawn_points(section)
        train, search = section.points, section.points + section.search_points
        self.classes = section.classes
        self._points, self._labels = points[:train], labels[:train]
        self._epochs = Epochs("point order", train, section.batch)
        self.search, self.heldout = (
            [_batch(points[places], labels[places]) for places in even_split(part, evaluation_batch)]
            for part in (np.arange(train, search), np.arange(search, len(points)))
        )
        self.part = leading(self.search, PART_POINTS)

    def batch(self, seed: int, step: int) -> Batch:
        """(float32[batch, features], int64[batch])."""
        places = self._epochs.places(seed, step)
        return _batch(self._points[places], self._labels[places])


def drawn_points(section: PointData) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(float32[n, features], int64[n]): those to train on first, then search, then held out."""
    generator = drawn("points", section.draw)
    directions = generator.standard_normal((section.features, section.classes)) / section.features**0.5
    count = section.points + section.search_points + section.heldout_points
    points = generator.standard_normal((count, section.features))
    scores = points @ directions + section.noise * generator.standard_normal((count, section.classes))
    return points.astype(np.float32), scores.argmax(1)


def fingerprint(section: PointData) -> str:
    """Hex digest of what decides the points."""
    return drawn_digest(section, DRAWING)


def _batch(points: NDArray[np.float32], labels: NDArray[np.int64]) -> Batch:
    return torch.from_numpy(points), torch.from_numpy(labels)
