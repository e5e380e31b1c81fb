"""Pictures of any size in a folder for each class, read when a batch needs them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from dynaquant_core.errors import DependencyError, ExperimentError
from dynaquant_core.experiments.config.pictures import FolderData
from dynaquant_core.experiments.data.dataset import Batch, drawn, even_split, leading, locate

__all__ = ["Pictures", "fingerprint", "listed"]

#: Mean and standard deviation of ImageNet's colours, on a scale of 0 to 1.
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)

#: Files that are pictures, and the share of the shorter side that evaluation sees (224 of 256).
SUFFIXES, CENTRE = frozenset({".jpg", ".jpeg", ".png"}), 0.875

#: Bytes at each end of a picture's file that its digest looks at.
END = 4096

#: Area of a random crop as a share of the picture (Szegedy et al. 2015).
AREA = (0.08, 1.0)

#: Rework is measured on at most this many images of the search set.
PART_IMAGES = 1000


def listed(source: str, part: str) -> list[tuple[Path, str]]:
    """(picture, name of its class) of ``train`` or ``val``, by name.

    Raises:
        ExperimentError: the folder is missing or holds no pictures.
    """
    folder = locate(source) / part
    found = [
        (path, path.parent.name) for path in sorted(folder.glob("*/*")) if path.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise ExperimentError(f"data: {folder} holds no pictures; expected CLASS/*.jpg or .png in it.")
    return found


def fingerprint(source: str) -> str:
    """Hex digest of all names and sizes, and of the ends of each file.

    To read them all would take longer than some trainings; compressed pictures of one size that differ do so
    at their ends too, where PNG has checksums.

    Raises:
        ExperimentError: the folder is missing, holds no pictures, or one cannot be read.
    """
    digest = xxhash.xxh3_128()
    for part in ("train", "val"):
        for path, name in listed(source, part):
            size, ends = _ends(path)
            digest.update(f"{part}/{name}/{path.name} {size}\n".encode())
            digest.update(ends)
    return digest.hexdigest()


def _ends(path: Path) -> tuple[int, bytes]:
    """Size of a file, and its first and last bytes; all of a small one."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(END)
            file.seek(max(END, size - END))
            return size, first + file.read(END)
    except OSError as error:
        raise ExperimentError(f"data: {path} cannot be read: {error.strerror}.") from None


class Pictures:
    """All training pictures in a new order each epoch; evaluation sets drawn from ``val``, kept in memory.

    Args:
        section: folder, side, batch and set sizes.
        evaluation_batch: images an evaluation batch.

    Raises:
        ExperimentError: the folder is not as it should be, or holds fewer pictures than asked for.
        DependencyError: Pillow is not installed.
    """

    def __init__(self, section: FolderData, evaluation_batch: int) -> None:
        self._section, self._train = section, listed(section.source, "train")
        names = sorted({name for _, name in self._train})
        self._numbers = {name: number for number, name in enumerate(names)}
        self.classes = len(names)
        val = listed(section.source, "val")
        unknown = {name for _, name in val} - self._numbers.keys()
        search, heldout = section.search_images, section.heldout_images
        if unknown or search + heldout > len(val) or section.batch > len(self._train):
            raise ExperimentError(
                f"data: {section.source} holds {len(self._train)} training and {len(val)} validation "
                f"pictures ({len(unknown)} classes only in val); {section.batch} a batch and "
                f"{search} + {heldout} for evaluation were asked for."
            )
        dealt = drawn("deal pictures").permutation(len(val))
        size = min(evaluation_batch, PART_IMAGES)
        self.search = self._fixed([val[place] for place in dealt[:search]], size)
        self.heldout = self._fixed([val[place] for place in dealt[search : search + heldout]], size)
        self.part = leading(self.search, PART_IMAGES)
        self._epoch: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def batch(self, seed: int, step: int) -> Batch:
        """(float32[batch, 3, side, side], int64[batch]); an epoch leaves out what does not fill a batch."""
        size = self._section.batch
        epoch, index = divmod(step, len(self._train) // size)
        if self._epoch is None or self._epoch[0] != (seed, epoch):
            self._epoch = ((seed, epoch), drawn("picture order", seed, epoch).permutation(len(self._train)))
        chosen = [self._train[place] for place in self._epoch[1][index * size : (index + 1) * size]]
        return self._tensors(chosen, drawn("crop", seed, step) if self._section.augment else None)

    def _fixed(self, pictures: list[tuple[Path, str]], size: int) -> list[Batch]:
        parts = even_split(np.arange(len(pictures)), size)
        return [self._tensors([pictures[place] for place in part], None) for part in parts]

    def _tensors(self, pictures: list[tuple[Path, str]], generator: np.random.Generator | None) -> Batch:
        side = self._section.side
        pixels = np.stack([_pixels(path, side, generator) for path, _ in pictures])
        scaled = ((pixels.astype(np.float32) / 255 - MEAN) / STD).transpose(0, 3, 1, 2)
        labels = torch.tensor([self._numbers[name] for _, name in pictures])
        return torch.from_numpy(np.ascontiguousarray(scaled)), labels


def _pixels(path: Path, side: int, generator: np.random.Generator | None) -> NDArray[np.uint8]:
    """uint8[side, side, 3]: the centre of a picture, or a random crop, perhaps flipped."""
    try:
        from PIL import Image
    except ImportError:
        raise DependencyError.of_extra("pictures need Pillow", "plots") from None
    try:
        with Image.open(path, formats=["JPEG", "PNG"]) as image:
            picture: Any = image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise ExperimentError(f"data: {path} is no picture ({error}).") from None
    width, height = picture.size
    box = _centre(width, height) if generator is None else _crop(width, height, generator)
    pixels: NDArray[np.uint8] = np.asarray(picture.resize((side, side), Image.Resampling.BILINEAR, box=box))
    flipped = generator is not None and generator.random() < 0.5
    return pixels[:, ::-1] if flipped else pixels


def _centre(width: int, height: int) -> tuple[float, float, float, float]:
    seen = CENTRE * min(width, height)
    left, top = (width - seen) / 2, (height - seen) / 2
    return left, top, left + seen, top + seen


def _crop(width: int, height: int, generator: np.random.Generator) -> tuple[float, float, float, float]:
    """A share of the area in a shape between 3:4 and 4:3, cut down to what the picture has."""
    area = width * height * generator.uniform(*AREA)
    shape = np.exp(generator.uniform(np.log(3 / 4), np.log(4 / 3)))
    wide, high = min(width, np.sqrt(area * shape)), min(height, np.sqrt(area / shape))
    left, top = generator.uniform(0, width - wide), generator.uniform(0, height - high)
    return float(left), float(top), float(left + wide), float(top + high)
