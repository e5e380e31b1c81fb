"""The table of datasets by their name in the YAML file."""

from __future__ import annotations

from dynaquant_core.experiments.config.language import ByteData, MaskedData, SentenceData, TokenData
from dynaquant_core.experiments.config.parts import DataSection, TextData
from dynaquant_core.experiments.config.pictures import FolderData
from dynaquant_core.experiments.data import cifar, corpus, pictures, sentences
from dynaquant_core.experiments.data.dataset import Dataset, file_digest, locate
from dynaquant_core.experiments.data.images import Images
from dynaquant_core.experiments.data.masked import Masked
from dynaquant_core.experiments.data.pictures import Pictures
from dynaquant_core.experiments.data.sentences import Sentences
from dynaquant_core.experiments.data.text import Bytes, Text
from dynaquant_core.experiments.data.tokens import Tokens

__all__ = ["fingerprint", "open_data"]


def open_data(section: DataSection, *, evaluation_batch: int) -> Dataset:
    """Reads a dataset; evaluation sets come in batches of ``evaluation_batch`` sequences or images.

    Raises:
        ExperimentError: the source is missing, unreadable or too small.
    """
    if isinstance(section, TextData):
        return Text(corpus.read(section.source, section.max_bytes), section, evaluation_batch)
    if isinstance(section, ByteData):
        return Bytes(corpus.read(section.source, section.max_bytes), section, evaluation_batch)
    if isinstance(section, SentenceData):
        return Sentences(section, evaluation_batch)
    if isinstance(section, TokenData):
        return Tokens(section, evaluation_batch)
    if isinstance(section, FolderData):
        return Pictures(section, evaluation_batch)
    if isinstance(section, MaskedData):
        return Masked(corpus.read(section.source, section.max_bytes), section, evaluation_batch)
    return Images(cifar.read(section.source), section, evaluation_batch)


def fingerprint(section: DataSection) -> str:
    """Hex digest of a source's content: two sources with the same digest train the same.

    Raises:
        ExperimentError: the source is missing or unreadable.
    """
    if isinstance(section, (TextData, ByteData, MaskedData)):
        return corpus.fingerprint(section.source, section.max_bytes)
    if isinstance(section, SentenceData):
        return sentences.fingerprint(section)
    if isinstance(section, TokenData):
        return file_digest(locate(section.source))
    if isinstance(section, FolderData):
        return pictures.fingerprint(section.source)
    return cifar.fingerprint(section.source)
