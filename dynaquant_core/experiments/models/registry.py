"""The table of models by their name in the YAML file."""

from __future__ import annotations

from torch import nn

from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.language import (
    BertModel,
    ByteData,
    HFModel,
    MaskedData,
    MiniLMModel,
    SentenceData,
    TokenData,
)
from dynaquant_core.experiments.config.parts import SIDE, DataSection, ResNetModel, TextData, ViTModel
from dynaquant_core.experiments.config.pictures import BottleneckModel, FolderData
from dynaquant_core.experiments.data.dataset import locate
from dynaquant_core.experiments.data.sentences import pad_token, read_tokenizer
from dynaquant_core.experiments.models.bert import Bert
from dynaquant_core.experiments.models.bottleneck import BottleneckNet
from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.experiments.models.pretrained import HF, MiniLM
from dynaquant_core.experiments.models.resnet import ResNet
from dynaquant_core.experiments.models.vit import ViT

__all__ = ["build"]


def build(experiment: Experiment, classes: int) -> nn.Module:
    """A freshly initialised model for ``classes`` targets, from torch's current random state."""
    section, data = experiment.model, experiment.data
    if isinstance(section, ResNetModel):
        return ResNet(classes, widths=section.widths, depths=section.depths)
    if isinstance(section, BottleneckModel):
        return BottleneckNet(classes, widths=section.widths, depths=section.depths)
    if isinstance(section, (MiniLMModel, HFModel)):
        return _of_transformers(section, data, classes)
    if isinstance(section, ViTModel):
        return ViT(
            classes,
            layers=section.layers,
            width=section.width,
            heads=section.heads,
            patch=section.patch,
            side=data.side if isinstance(data, FolderData) else SIDE,
            dropout=section.dropout,
        )
    assert isinstance(data, (TextData, ByteData, MaskedData)), (
        "the experiment's own check pairs models with data"
    )
    return (Bert if isinstance(section, BertModel) else CharGPT)(
        classes,
        layers=section.layers,
        width=section.width,
        heads=section.heads,
        context=data.context,
        dropout=section.dropout,
    )


def _of_transformers(section: MiniLMModel | HFModel, data: DataSection, classes: int) -> nn.Module:
    if isinstance(data, TokenData):
        assert isinstance(section, HFModel), "the experiment's own check pairs models with data"
        task = "causal" if data.mask is None else "masked"
        return HF(locate(section.path), task, dropout=section.dropout)
    assert isinstance(data, SentenceData), "the experiment's own check pairs models with data"
    tokenizer = read_tokenizer(data.tokenizer)
    pad = pad_token(tokenizer)
    if isinstance(section, HFModel):
        task = "score" if classes == 1 else "classes"
        separator = tokenizer.token_to_id("[SEP]") if data.joined else None
        return HF(
            locate(section.path), task, classes=classes, dropout=section.dropout, pad=pad, separator=separator
        )
    return MiniLM(
        tokenizer.get_vocab_size(),
        classes,
        layers=section.layers,
        width=section.width,
        heads=section.heads,
        dropout=section.dropout,
        pad=pad,
    )
