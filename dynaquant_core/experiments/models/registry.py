"""The table of models by their name in the YAML file."""

from __future__ import annotations

from torch import nn

from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.language import BertModel, ByteData, MaskedData
from dynaquant_core.experiments.config.parts import ResNetModel, TextData, ViTModel
from dynaquant_core.experiments.models.bert import Bert
from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.experiments.models.resnet import ResNet
from dynaquant_core.experiments.models.vit import ViT

__all__ = ["build"]


def build(experiment: Experiment, classes: int) -> nn.Module:
    """A freshly initialised model for ``classes`` targets, from torch's current random state."""
    section, data = experiment.model, experiment.data
    if isinstance(section, ResNetModel):
        return ResNet(classes, widths=section.widths, depths=section.depths)
    if isinstance(section, ViTModel):
        return ViT(
            classes,
            layers=section.layers,
            width=section.width,
            heads=section.heads,
            patch=section.patch,
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
