"""The table of datasets by their name in the YAML file."""

from __future__ import annotations

from dynaquant_core.experiments.config.parts import ImageData, TextData
from dynaquant_core.experiments.config.small import DigitData, RatingsData
from dynaquant_core.experiments.data import cifar, corpus, ratings
from dynaquant_core.experiments.data.dataset import Dataset
from dynaquant_core.experiments.data.digits import Digits
from dynaquant_core.experiments.data.images import Images
from dynaquant_core.experiments.data.ratings import Ratings
from dynaquant_core.experiments.data.text import Text

__all__ = ["fingerprint", "open_data"]

Section = TextData | ImageData | DigitData | RatingsData


def open_data(section: Section, *, evaluation_batch: int) -> Dataset:
    """Reads a dataset; evaluation sets come in batches of ``evaluation_batch`` sequences or images.

    Raises:
        ExperimentError: the source is missing, unreadable or too small.
    """
    if isinstance(section, TextData):
        return Text(corpus.read(section.source, section.max_bytes), section, evaluation_batch)
    if isinstance(section, DigitData):
        return Digits(section, evaluation_batch)
    if isinstance(section, RatingsData):
        return Ratings(section, evaluation_batch)
    return Images(cifar.read(section.source), section, evaluation_batch)


def fingerprint(section: Section) -> str:
    """Hex digest of a source's content: two sources with the same digest train the same.

    Raises:
        ExperimentError: the source is missing or unreadable.
    """
    if isinstance(section, TextData):
        return corpus.fingerprint(section.source, section.max_bytes)
    if isinstance(section, RatingsData):
        return ratings.fingerprint(section)
    return cifar.fingerprint(section.source)
