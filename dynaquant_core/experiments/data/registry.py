"""The table of datasets by their name in the YAML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dynaquant_core.experiments.config.language import ByteData, MaskedData, SentenceData, TokenData
from dynaquant_core.experiments.config.parts import DataSection, ImageData, TextData
from dynaquant_core.experiments.config.pictures import FolderData
from dynaquant_core.experiments.config.section import Section
from dynaquant_core.experiments.config.small import DigitData, PointData, RatingsData
from dynaquant_core.experiments.data import cifar, corpus, pictures, points, ratings, sentences
from dynaquant_core.experiments.data.dataset import Dataset, file_digest, locate
from dynaquant_core.experiments.data.digits import Digits
from dynaquant_core.experiments.data.images import Images
from dynaquant_core.experiments.data.masked import Masked
from dynaquant_core.experiments.data.pictures import Pictures
from dynaquant_core.experiments.data.points import Points
from dynaquant_core.experiments.data.ratings import Ratings
from dynaquant_core.experiments.data.sentences import Sentences
from dynaquant_core.experiments.data.text import Bytes, Text
from dynaquant_core.experiments.data.tokens import Tokens

__all__ = ["fingerprint", "open_data"]


@dataclass(frozen=True, slots=True)
class _Source:
    """What is done with the section of one kind of data.

    Args:
        read: the data set, from the section and the size of evaluation batches.
        digest: of the content that the section names.
    """

    read: Callable[[Any, int], Dataset]
    digest: Callable[[Any], str]


def _text(section: TextData | ByteData | MaskedData) -> str:
    return corpus.read(section.source, section.max_bytes)


def _text_digest(section: TextData | ByteData | MaskedData) -> str:
    return corpus.fingerprint(section.source, section.max_bytes)


def _array_digest(section: ImageData | DigitData) -> str:
    return cifar.fingerprint(section.source)


SOURCES: Final[Mapping[type[Section], _Source]] = {
    TextData: _Source(lambda data, batch: Text(_text(data), data, batch), _text_digest),
    ByteData: _Source(lambda data, batch: Bytes(_text(data), data, batch), _text_digest),
    MaskedData: _Source(lambda data, batch: Masked(_text(data), data, batch), _text_digest),
    SentenceData: _Source(Sentences, sentences.fingerprint),
    TokenData: _Source(Tokens, lambda data: file_digest(locate(data.source))),
    FolderData: _Source(Pictures, lambda data: pictures.fingerprint(data.source)),
    ImageData: _Source(lambda data, batch: Images(cifar.read(data.source), data, batch), _array_digest),
    DigitData: _Source(Digits, _array_digest),
    PointData: _Source(Points, points.fingerprint),
    RatingsData: _Source(Ratings, ratings.fingerprint),
}


def open_data(section: DataSection, *, evaluation_batch: int) -> Dataset:
    """Reads a dataset; evaluation sets come in batches of ``evaluation_batch`` sequences or images.

    Raises:
        ExperimentError: the source is missing, unreadable or too small.
    """
    return SOURCES[type(section)].read(section, evaluation_batch)


def fingerprint(section: DataSection) -> str:
    """Hex digest of a source's content: two sources with the same digest train the same.

    Raises:
        ExperimentError: the source is missing or unreadable.
    """
    return SOURCES[type(section)].digest(section)
