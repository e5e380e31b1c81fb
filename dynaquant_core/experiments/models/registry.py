"""The table of models by their name in the YAML file."""

from __future__ import annotations

from torch import nn

from dynaquant_core.experiments.config.experiment import Experiment
from dynaquant_core.experiments.config.parts import (
    MobileNetModel,
    ResNetModel,
    TextData,
    VGGModel,
    ViTModel,
)
from dynaquant_core.experiments.models.char_gpt import CharGPT
from dynaquant_core.experiments.models.mobilenet import MobileNet
from dynaquant_core.experiments.models.resnet import ResNet
from dynaquant_core.experiments.models.vgg import VGG
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
    if isinstance(section, VGGModel):
        return VGG(classes, widths=section.widths, depths=section.counts, hidden=section.hidden)
    if isinstance(section, MobileNetModel):
        return MobileNet(classes, widths=section.widths, depths=section.counts, expand=section.expand)
    assert isinstance(data, TextData), "the experiment's own check pairs models with data"
    return CharGPT(
        classes,
        layers=section.layers,
        width=section.width,
        heads=section.heads,
        context=data.context,
        dropout=section.dropout,
    )
