"""Image classification: normalisation, and augmentation that a resumed run repeats exactly."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dynaquant_core.errors import ExperimentError
from dynaquant_core.experiments.config.parts import ImageData
from dynaquant_core.experiments.data.cifar import Pixels
from dynaquant_core.experiments.data.dataset import Batch, drawn, even_split, leading

__all__ = ["Images", "augment", "normalise"]

#: Mean and standard deviation of CIFAR-10's colours, on a scale of 0 to 1.
MEAN = np.array([0.4914, 0.4822, 0.4465], dtype=np.float32)
STD = np.array([0.2470, 0.2435, 0.2616], dtype=np.float32)

#: Crops are taken after padding by this many black pixels on each side (He et al. 2016, sec. 4.2).
PADDING = 4

#: Rework is measured on at most this many images of the search set.
PART_IMAGES = 1000


def normalise(images: NDArray[np.uint8]) -> torch.Tensor:
    """uint8[n, height, width, 3] -> float32[n, 3, height, width] of about zero mean and unit variance."""
    scaled = (images.astype(np.float32) / np.float32(255) - MEAN) / STD
    return torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)))


def augment(images: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
    """Flips half of the images, shifts each by up to `PADDING` pixels; uint8[n, side, side, 3] in and out."""
    count, side = images.shape[:2]
    flip: NDArray[np.bool_] = np.less(generator.random(count), 0.5)
    images = np.where(flip[:, None, None, None], images[:, :, ::-1], images)
    padded = np.pad(images, ((0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0)))
    top, left = generator.integers(0, 2 * PADDING + 1, (2, count))
    rows = top[:, None] + np.arange(side)
    columns = left[:, None] + np.arange(side)
    cropped: NDArray[np.uint8] = padded[
        np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]
    ]
    return cropped


class Images:
    """All training images in a new order each epoch; evaluation sets from the front of the test split.

    Args:
        pixels: the images.
        section: batch, augmentation and set sizes.
        evaluation_batch: images an evaluation batch.

    Raises:
        ExperimentError: fewer images than asked for.
    """

    def __init__(self, pixels: Pixels, section: ImageData, evaluation_batch: int) -> None:
        search, heldout = section.search_images, section.heldout_images
        if search + heldout > len(pixels.test):
            raise ExperimentError(
                f"data: {search} search and {heldout} held-out images are more than the "
                f"{len(pixels.test)} test images; lower data.search_images or data.heldout_images."
            )
        count = section.train_images or len(pixels.train)
        if not section.batch <= count <= len(pixels.train):
            raise ExperimentError(
                f"data: {count} training images asked for in batches of {section.batch}, "
                f"found {len(pixels.train)}."
            )
        self._images, self._labels = pixels.train[:count], pixels.train_labels[:count]
        self._batch, self._augment = section.batch, section.augment
        evaluation_batch = min(evaluation_batch, PART_IMAGES)
        self.classes = int(max(pixels.train_labels.max(), pixels.test_labels.max())) + 1
        self.search = _batches(pixels, 0, search, evaluation_batch)
        self.heldout = _batches(pixels, search, search + heldout, evaluation_batch)
        self.part = leading(self.search, PART_IMAGES)
        self._epoch: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def batch(self, seed: int, step: int) -> Batch:
        """(float32[batch, 3, side, side], int64[batch]); an epoch leaves out what does not fill a batch."""
        epoch, index = divmod(step, len(self._images) // self._batch)
        chosen = self._order(seed, epoch)[index * self._batch : (index + 1) * self._batch]
        images = self._images[chosen]
        if self._augment:
            images = augment(images, drawn("augment", seed, step))
        return normalise(images), torch.from_numpy(self._labels[chosen])

    def _order(self, seed: int, epoch: int) -> NDArray[np.int64]:
        if self._epoch is None or self._epoch[0] != (seed, epoch):
            self._epoch = ((seed, epoch), drawn("image order", seed, epoch).permutation(len(self._images)))
        return self._epoch[1]


def _batches(pixels: Pixels, start: int, stop: int, size: int) -> list[Batch]:
    places = even_split(np.arange(start, stop), size)
    return [(normalise(pixels.test[part]), torch.from_numpy(pixels.test_labels[part])) for part in places]
