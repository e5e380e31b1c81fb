"""The table of models by their name in the YAML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

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
from dynaquant_core.experiments.config.parts import (
    SIDE,
    CharGPTModel,
    DataSection,
    MobileNetModel,
    ResNetModel,
    TextData,
    VGGModel,
    ViTModel,
)
from dynaquant_core.experiments.config.pictures import BottleneckModel, FolderData
from dynaquant_core.experiments.config.section import Section
from dynaquant_core.experiments.config.small import (
    AlexNetModel,
    CharLSTMModel,
    FactorisationModel,
    InceptionModel,
    LeNet5Model,
    MlpModel,
    MlrModel,
    PointData,
    RatingsData,
)
from dynaquant_core.experiments.data.dataset import locate
from dynaquant_core.experiments.data.sentences import pad_token, read_tokenizer
from dynaquant_core.experiments.models.bert import Bert
from dynaquant_core.experiments.models.bottleneck import BottleneckNet
from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.experiments.models.char_lstm import CharLSTM
from dynaquant_core.experiments.models.digits import SIDE as DIGIT
from dynaquant_core.experiments.models.digits import AlexNet, LeNet5, Mlp, Mlr
from dynaquant_core.experiments.models.factorisation import Factorisation
from dynaquant_core.experiments.models.inception import Inception
from dynaquant_core.experiments.models.mobilenet import MobileNet
from dynaquant_core.experiments.models.pretrained import HF, MiniLM
from dynaquant_core.experiments.models.resnet import ResNet
from dynaquant_core.experiments.models.vgg import VGG
from dynaquant_core.experiments.models.vit import ViT

__all__ = ["build"]

PAIRED = "the experiment's own check pairs models with data"


Model = Callable[[Any, Any, int], nn.Module]


def build(experiment: Experiment, classes: int) -> nn.Module:
    """A freshly initialised model for ``classes`` targets, from torch's current random state."""
    return MODELS[type(experiment.model)](experiment.model, experiment.data, classes)


def _vit(section: ViTModel, data: DataSection, classes: int) -> nn.Module:
    side = data.side if isinstance(data, FolderData) else SIDE
    return ViT(
        classes,
        layers=section.layers,
        width=section.width,
        heads=section.heads,
        patch=section.patch,
        side=side,
        dropout=section.dropout,
    )


def _mlp(section: MlpModel, data: DataSection, classes: int) -> nn.Module:
    inputs = data.features if isinstance(data, PointData) else DIGIT * DIGIT
    return Mlp(classes, width=section.width, inputs=inputs)


def _vgg(section: VGGModel, data: DataSection, classes: int) -> nn.Module:  # noqa: ARG001
    return VGG(classes, widths=section.widths, depths=section.counts, hidden=section.hidden)


def _mobilenet(section: MobileNetModel, data: DataSection, classes: int) -> nn.Module:  # noqa: ARG001
    return MobileNet(classes, widths=section.widths, depths=section.counts, expand=section.expand)


def _transformer(section: CharGPTModel | BertModel, data: DataSection, classes: int) -> nn.Module:
    assert isinstance(data, (TextData, ByteData, MaskedData)), PAIRED
    return (Bert if isinstance(section, BertModel) else CharGPT)(
        classes,
        layers=section.layers,
        width=section.width,
        heads=section.heads,
        context=data.context,
        dropout=section.dropout,
    )


def _factorisation(section: FactorisationModel, data: DataSection, classes: int) -> nn.Module:  # noqa: ARG001
    assert isinstance(data, RatingsData), PAIRED
    return Factorisation(data.users, data.items, rank=section.rank)


def _of_transformers(section: MiniLMModel | HFModel, data: DataSection, classes: int) -> nn.Module:
    if isinstance(data, TokenData):
        assert isinstance(section, HFModel), PAIRED
        task = "causal" if data.mask is None else "masked"
        return HF(locate(section.path), task, dropout=section.dropout)
    assert isinstance(data, SentenceData), PAIRED
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


#: Section of a model -> what makes it, from section, data and number of targets.
MODELS: Final[Mapping[type[Section], Model]] = {
    CharGPTModel: _transformer,
    BertModel: _transformer,
    MiniLMModel: _of_transformers,
    HFModel: _of_transformers,
    ResNetModel: lambda own, _, classes: ResNet(classes, widths=own.widths, depths=own.depths),
    BottleneckModel: lambda own, _, classes: BottleneckNet(classes, widths=own.widths, depths=own.depths),
    ViTModel: _vit,
    VGGModel: _vgg,
    MobileNetModel: _mobilenet,
    CharLSTMModel: lambda own, _, classes: CharLSTM(classes, width=own.width, layers=own.layers),
    InceptionModel: lambda own, _, classes: Inception(classes, width=own.width),
    MlpModel: _mlp,
    MlrModel: lambda _own, _data, classes: Mlr(classes),
    LeNet5Model: lambda _own, _data, classes: LeNet5(classes),
    AlexNetModel: lambda own, _, classes: AlexNet(classes, width=own.width, dropout=own.dropout),
    FactorisationModel: _factorisation,
}
