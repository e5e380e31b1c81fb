"""Reads 32x32 images from an npz file: raw pixels, or every image as its own JPEG."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynaquant_core.errors import DependencyError, ExperimentError
from dynaquant_core.experiments.data.dataset import file_digest, locate

__all__ = ["Pixels", "fingerprint", "read"]

SIDE = 32


@dataclass(frozen=True, slots=True)
class Pixels:
    """A split into training and test: images uint8[n, 32, 32, 3], labels int64[n]."""

    train: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


def read(source: str) -> Pixels:
    """Decodes all images of a source.

    Args:
        source: an npz with ``x_train, y_train, x_test, y_test``, or with ``{train,test}_jpeg`` (all files end
            to end), ``_offset`` (int64[n + 1]) and ``_label``.

    Raises:
        ExperimentError: missing, not such a file, or broken inside.
        DependencyError: JPEG needs Pillow.
    """
    path = locate(source)
    arrays = _load(path)
    try:
        if "x_train" in arrays:
            pixels = (arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"])
        else:
            pixels = (*_jpeg(arrays, "train", path), *_jpeg(arrays, "test", path))
    except KeyError as error:
        raise ExperimentError(
            f"data: {path} has no array {error.args[0]!r}; expected x_train, y_train, x_test, y_test, or "
            f"train_jpeg, train_offset, train_label and the same for test."
        ) from None
    return _checked(path, *pixels)


def fingerprint(source: str) -> str:
    """Hex digest of the file's bytes."""
    return file_digest(locate(source))


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ExperimentError(f"data: {path} is not an npz file of plain arrays ({error}).") from None


def _jpeg(arrays: dict[str, NDArray[Any]], split: str, path: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    files, offsets, labels = (arrays[f"{split}_{name}"] for name in ("jpeg", "offset", "label"))
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) == 0 or files.dtype != np.uint8:
        raise ExperimentError(
            f"data: {path} holds {split}_offset {offsets.dtype}{list(offsets.shape)} and {split}_jpeg "
            f"{files.dtype}; expected whole numbers [n + 1] and uint8."
        )
    images = np.empty((len(offsets) - 1, SIDE, SIDE, 3), dtype=np.uint8)
    for index in range(len(images)):
        images[index] = _decode(files[offsets[index] : offsets[index + 1]], f"{path}: {split} image {index}")
    return images, labels


def _decode(file: NDArray[np.uint8], where: str) -> NDArray[np.uint8]:
    try:
        from PIL import Image
    except ImportError:
        raise DependencyError.of_extra("JPEG-coded images need Pillow", "plots") from None
    try:
        with Image.open(io.BytesIO(file.tobytes()), formats=["JPEG"]) as image:
            size = image.size
            pixels = np.asarray(image.convert("RGB")) if size == (SIDE, SIDE) else None
    except (OSError, SyntaxError, ValueError) as error:
        raise ExperimentError(f"data: {where} is not a JPEG file ({error}).") from None
    if pixels is None:
        raise ExperimentError(f"data: {where} is {size[0]}x{size[1]} pixels, expected {SIDE}x{SIDE}.")
    return pixels


def _checked(
    path: Path, train: NDArray[Any], train_labels: NDArray[Any], test: NDArray[Any], test_labels: NDArray[Any]
) -> Pixels:
    for images, labels in ((train, train_labels), (test, test_labels)):
        if (
            images.shape[1:] != (SIDE, SIDE, 3)
            or images.dtype != np.uint8
            or labels.shape != images.shape[:1]
        ):
            raise ExperimentError(
                f"data: {path} holds images {images.dtype}{list(images.shape)} with labels "
                f"{list(labels.shape)}; expected uint8[n, {SIDE}, {SIDE}, 3] with one label each."
            )
    return Pixels(train, train_labels.astype(np.int64), test, test_labels.astype(np.int64))
