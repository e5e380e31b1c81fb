"""Grey 28x28 images with labels: MNIST, and whatever has its form."""

from __future__ import annotations

import zipfile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.config.small import DigitData
from dynaquant_core.experiments.data.dataset import Batch, even_split, leading, locate
from dynaquant_core.experiments.data.epochs import Epochs

__all__ = ["Digits"]

SIDE = 28

#: Mean and standard deviation of MNIST's training pixels, on a scale of 0 to 1.
MEAN, STD = 0.1307, 0.3081

#: Rework of a run that trains is measured on at most this many images of the search set.
PART_IMAGES = 1000

#: The arrays that a source holds: images and labels to train on, and of the test.
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class Digits:
    """Training images in a new order each epoch; evaluation sets from the front of the test split.

    Args:
        section: source, batch and set sizes.
        evaluation_batch: images an evaluation batch.

    Raises:
        ExperimentError: the source is missing, is not such a file, or has fewer images than asked for.
    """

    def __init__(self, section: DigitData, evaluation_batch: int) -> None:
        train, labels, test, test_labels = _read(section.source)
        count, wanted = section.train_images or len(train), section.search_images + section.heldout_images
        if wanted > len(test):
            raise ExperimentError(
                f"data: {section.search_images} search and {section.heldout_images} held-out images are more "
                f"than the {len(test)} test images; lower data.search_images or data.heldout_images."
            )
        if not section.batch <= count <= len(train):
            raise ExperimentError(
                f"data: {count} training images asked for in batches of {section.batch}, found {len(train)}."
            )
        self._images, self._labels = train[:count], labels[:count]
        self._epochs = Epochs("digit order", count, section.batch)
        self.classes = int(max(labels.max(), test_labels.max())) + 1
        parts = [
            even_split(np.arange(start, stop), min(evaluation_batch, PART_IMAGES))
            for start, stop in ((0, section.search_images), (section.search_images, wanted))
        ]
        self.search, self.heldout = (
            [_batch(test[places], test_labels[places]) for places in part] for part in parts
        )
        self.part = leading(self.search, PART_IMAGES)

    def batch(self, seed: int, step: int) -> Batch:
        """(float32[batch, 1, 28, 28], int64[batch])."""
        places = self._epochs.places(seed, step)
        return _batch(self._images[places], self._labels[places])


def _batch(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Batch:
    scaled = (images.astype(np.float32) / np.float32(255) - np.float32(MEAN)) / np.float32(STD)
    return torch.from_numpy(scaled[:, None]), torch.from_numpy(labels)


def _read(source: str) -> list[NDArray[Any]]:
    path = locate(source)
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in ARRAYS if name not in archive.files]
            arrays = [] if missing else [archive[name] for name in ARRAYS]
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ExperimentError(f"data: {path} is not an npz file of plain arrays ({error}).") from None
    if missing:
        raise ExperimentError(
            f"data: {path} has no array {missing[0]!r}; expected {', '.join(ARRAYS)}, as in MNIST's npz."
        )
    for images, labels in (arrays[:2], arrays[2:]):
        good = images.dtype == np.uint8 and images.shape[1:] == (SIDE, SIDE) and labels.dtype.kind in "iu"
        if not good or labels.shape != images.shape[:1] or not len(images):
            raise ExperimentError(
                f"data: {path} holds images {images.dtype}{list(images.shape)} with labels {labels.dtype}"
                f"{list(labels.shape)}; expected uint8[n, {SIDE}, {SIDE}] with a whole number each."
            )
    return [arrays[0], arrays[1].astype(np.int64), arrays[2], arrays[3].astype(np.int64)]
